"""Runs: one execution of an agent each, on a thread, in a box. Launched, watched, cancelled, resumed; ended once."""
