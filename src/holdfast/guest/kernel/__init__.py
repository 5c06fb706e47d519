"""The kernel: persistent Python contexts in a box, and how the host talks to them.

Standard library only, Python 3.9+. A nursery listens on one port and forks a process for each context; a connection is
handed to its context, so that what is said goes through nobody else. A context outlives its connections.
"""
