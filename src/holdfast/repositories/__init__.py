"""Git repositories of this machine: what a run begins with, and how its work comes home.

The commands run on the caller's machine, with its git and its credentials. What comes from a box is never trusted.
"""
