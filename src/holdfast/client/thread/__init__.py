"""Threads over HTTP: appends without duplicates, reads, and tails that survive lost connections."""
