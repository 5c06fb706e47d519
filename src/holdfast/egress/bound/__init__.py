"""Secrets that are bound to hosts: the proxy ends TLS for those hosts, and puts the secrets into requests."""

from holdfast.egress.bound.box_secrets import BoxSecrets, ServerSecrets
from holdfast.egress.bound.rules import SecretSource

__all__ = ["BoxSecrets", "SecretSource", "ServerSecrets"]
