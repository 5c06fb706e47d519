"""What runs inside a box. Standard library only, Python 3.9+, and nothing of ours: it is copied in and runs alone."""

GUEST = ("codec", "files", "init", "landlock", "lineage", "outlet", "search", "tar", "tending", "tree")
"""The modules of process 1 of a box, and of the children that it has do what takes long."""
BRIDGE = ("bridge", "carrying", "frames", "keeping")
"""What joins it to a stream, beside those."""
