"""A persistent Python in a box, with callbacks to the host."""
