"""Workflows: steps that are carried out one after the other in a session. An execution is a thread."""
