"""`holdfast run`, and the commands on the runs of a thread."""
