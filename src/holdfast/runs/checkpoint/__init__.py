"""Checkpoints at the end of each turn, and what they are for: fork, rewind, compare."""
