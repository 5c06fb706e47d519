"""Where an interpreter comes from, if another made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.interpreter.bridge.children import Child, Children
from holdfast.interpreter.kernel.context import Context

if TYPE_CHECKING:
    from holdfast.interpreter.interpreter import Interpreter


@dataclass(frozen=True, slots=True)
class BranchOf:
    """It was forked off the memory of another: it shares everything but its context."""

    parent: Interpreter
    context: Context


@dataclass(frozen=True, slots=True)
class ChildOf:
    """It has a box of its own, one level below another."""

    parent: Interpreter
    child: Child
    children: Children
    """Those of the whole tree."""


Lineage = BranchOf | ChildOf
