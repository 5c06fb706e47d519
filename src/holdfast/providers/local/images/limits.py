"""Limits on archives, beyond which one is treated as a bomb."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.guest.init.tar import Budget

_MEGABYTE = 1 << 20
_GIGABYTE = 1 << 30


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """For one import, with all of its layers."""

    entries: int = 2_000_000
    unpacked: int = 64 * _GIGABYTE
    """Bytes of all files."""
    archive: int = 64 * _GIGABYTE
    """Bytes as received."""
    ratio: int = 200
    """How many bytes one compressed byte may become, after the first `unsuspicious` bytes of output."""
    unsuspicious: int = 512 * _MEGABYTE
    name: int = 4096
    """Bytes of a name or a link target."""
    depth: int = 256
    """Levels of nested folders."""
    layers: int = 128
    document: int = 8 * _MEGABYTE
    """Bytes of a manifest, an index or a configuration."""
    attributes: int = 64
    """Extended attributes of one file."""
    attribute: int = 4096
    """Bytes of one attribute: what common file systems can store."""
    memory: int = 512 * _MEGABYTE
    """Bytes that a decompressor may allocate."""
    spare: int = 256 * _MEGABYTE
    """Bytes that stay free on disk."""

    def budget(self) -> Budget:
        return Budget(entries=self.entries, size=self.unpacked, name=self.name, depth=self.depth, into="image")
