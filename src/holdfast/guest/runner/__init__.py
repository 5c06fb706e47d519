"""The runner: the process in a box that starts a coding agent, mirrors its events to the thread, and posts its end.

Standard library only, Python 3.9+, one thread, few imports: it is packed, sent into a box and started there. The reader
of a harness turns the agent's output into entries; nothing here knows an agent's name.
"""
