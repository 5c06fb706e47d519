"""Which names a piece of code may bind: those it leaves alone need not be sent to a box again.

Rather too many than too few: what looks as if it could bind anything is said to.
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
"""Ways to a namespace that do not name what they change there."""
_REACHING_ATTRIBUTES: Final = frozenset(("__builtins__", "__dict__", "__globals__", "_getframe", "modules"))


def bound_names(code: str) -> Set[str]:
    """All of them, in whatever scope; `ANYTHING` among them where nobody can say. None where nothing of it will run."""
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
