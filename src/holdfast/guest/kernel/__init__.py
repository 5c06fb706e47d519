"""The kernel: persistent Python contexts in a box, and how the host talks to them.

Standard library only, Python 3.9+. A fork server listens on one port and forks a process for each context. It hands
each connection to its context, so that host and context talk directly. A context outlives its connections.
"""
