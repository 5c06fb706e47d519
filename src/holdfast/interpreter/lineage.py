"""Where an interpreter comes from, if another one made it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.interpreter.bridge.children import Child, Children
from holdfast.interpreter.record import LazyRecord
from holdfast.interpreter.runtime import Runtime


@dataclass(frozen=True, slots=True)
class BranchOf:
    """Forked from the memory of another interpreter: shares its box and its record, and has a context of its own."""

    runtime: Runtime
    record: LazyRecord


@dataclass(frozen=True, slots=True)
class ChildOf:
    """One level below another interpreter, with a box of its own."""

    child: Child
    children: Children
    """The children of the whole tree."""
    record: LazyRecord
    """The record of the parent."""


Lineage = BranchOf | ChildOf
