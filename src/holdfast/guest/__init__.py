"""What runs inside a box. Standard library only, Python 3.9+, and nothing of ours: it is copied in and runs alone."""

GUEST = (
    "codec",
    "files",
    "init",
    "landlock",
    "process_tree",
    "egress_listener",
    "search",
    "tar",
    "supervision",
    "tree",
)
"""The modules of process 1 of a box, and of the children that it has do what takes long."""
BRIDGE = ("stream_server", "pumps", "frames", "output_log")
"""What joins it to a stream, beside those."""
