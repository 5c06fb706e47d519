"""Threads over HTTP: appends that are never doubled, reads, and tails that outlive connections."""
