"""The local provider: boxes on this machine, confined by bubblewrap. They start at once and outlive the server."""

from holdfast.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
