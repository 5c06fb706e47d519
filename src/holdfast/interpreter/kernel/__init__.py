"""The Python in the box, seen from the host: its process, its contexts, executions and their results."""
