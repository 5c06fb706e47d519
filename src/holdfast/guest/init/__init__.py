"""Process 1 of a box, the children that it forks, and the bridge that connects it to a stream.

A box gets these modules as one folder, without their package. So they import each other by their bare names.
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
