"""The hub: the server's side of the connections that the runners of sessions hold."""
