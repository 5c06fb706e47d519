"""Secrets: sealed at rest, bound to the hosts that they may be sent to, and given to boxes by name."""

from holdfast.environments.secrets.rows import NamedSecretStore, SecretRow
from holdfast.environments.secrets.vault import SecretNames, Secrets

__all__ = ["NamedSecretStore", "SecretNames", "SecretRow", "Secrets"]
