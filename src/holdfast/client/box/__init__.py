"""Boxes over HTTP and WebSockets, with the same contract as a provider's boxes."""
