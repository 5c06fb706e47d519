"""Reads command lines: declarations of parameters, a fast parser, and Typer for everything else."""
