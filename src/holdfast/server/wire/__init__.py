"""Below ASGI and around it: connections, the stream surface, WebSockets, and what is proxied to ports of boxes."""
