"""The runner: the process in a box that starts a coding agent, mirrors its events to the thread and posts its end.

Standard library only, Python 3.9+, one thread, few imports: it is packed, sent into any box and started there. What an
agent prints is turned into entries by the reader of its harness; nothing here knows an agent's name.
"""
