"""Boxes over HTTP and WebSockets: the same contract as a provider's boxes, behind a server."""
