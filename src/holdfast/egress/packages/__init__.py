"""Packages that boxes install: fetched from the registries of this machine over TLS, and kept for the next box."""

from holdfast.egress.packages.cache import PackageCache
from holdfast.egress.packages.mirror import PackageMirror

__all__ = ["PackageCache", "PackageMirror"]
