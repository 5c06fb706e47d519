"""REST: boxes, with their files, processes, snapshots and WebSockets."""
