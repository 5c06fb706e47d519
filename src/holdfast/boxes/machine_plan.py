"""What `holdfast provider setup` puts into a machine of the user: programs, and variables of the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Program:
    """An agent on this machine, to be copied."""

    name: str
    version: str
    folder: Path
    command: str
    """Its program, relative to the folder."""
    node: Path
    """Our node, for a machine that has none: the program, in `bin` of a folder of its own."""
    is_script: bool
    """Whether it needs node."""


@dataclass(frozen=True, slots=True)
class MachinePlan:
    machine: str
    """Its name at the vendor, or the id of a box."""
    programs: tuple[Program, ...]
    node_fits: Callable[[str], bool]
    """Whether the programs run on a version of node, which may be `none`."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
