"""Which names a piece of code may bind. Variables that it cannot change need not be sent to the box again.

Errs on the safe side: code that might bind any name is reported as `ANYTHING`.
"""

from __future__ import annotations

import ast
from collections.abc import Set
from typing import Final

ANYTHING: Final = "*"
_REACHING: Final = frozenset(
    ("__builtins__", "__import__", "__main__", "builtins", "compile", "delattr", "eval", "exec", "globals", "importlib",
     "inspect", "locals", "runpy", "setattr", "vars")
)  # fmt: skip
"""Names that give access to a namespace without naming what they change."""
_REACHING_ATTRIBUTES: Final = frozenset(("__builtins__", "__dict__", "__globals__", "_getframe", "modules"))


def bound_names(code: str) -> Set[str]:
    """The names bound in any scope. Contains `ANYTHING` if they cannot be known. Empty if the code does not compile."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=context):
                if name in _REACHING:
                    found.add(ANYTHING)
                if not isinstance(context, ast.Load):
                    found.add(name)
            case ast.Attribute(attr=name):
                if name in _REACHING_ATTRIBUTES:
                    found.add(ANYTHING)
            case ast.ImportFrom(module=str(name)):
                if name.partition(".")[0] in _REACHING:
                    found.add(ANYTHING)
            case ast.alias(name=name, asname=other):
                first = name.partition(".")[0]  # which is what `import a.b` binds
                found.add(other or first)
                if first in _REACHING:
                    found.add(ANYTHING)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.MatchMapping(rest=str(name)):
                found.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found.update(names)
    return found
