"""The name server: which brokers live and which topics they hold. May import `remoting` and what is below it.

Everything belongs to the thread of the server's loop; files are written in a thread of their own.
"""
