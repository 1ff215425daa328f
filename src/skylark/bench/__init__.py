"""Load, measured: thin clients, servers started for a run, figures as tables, JSON and pages.

Imports every lower layer; opens sockets and starts processes of its own. Extra `bench`.
"""
