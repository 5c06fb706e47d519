"""The proxy to programs in boxes: HTTP and upgraded connections, for previews of ports and for the gateway alike."""
