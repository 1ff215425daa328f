"""The broker: topics, groups, offsets and clients, and the requests that use them.

Imports the store and remoting and what is below them. Everything belongs to the thread of the
broker's loop; what may wait for a disk is done in threads.
"""
