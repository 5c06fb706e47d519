"""Workspaces: the files that runs begin with, and what changed in them."""
