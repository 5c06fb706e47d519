"""The code that runs inside a box. It uses only the standard library (Python 3.9+), because it is copied in and runs
alone.
"""

GUEST = (
    "activity",
    "codec",
    "discard",
    "files",
    "init",
    "landlock",
    "process_tree",
    "egress_listener",
    "search",
    "supervision",
    "tar",
    "terminal",
    "tree",
)
"""The modules of process 1 of a box, and of the children that do slow work for it."""
BRIDGE = ("stream_server", "pumps", "frames", "output_log")
"""Additional modules that connect it to a stream."""
