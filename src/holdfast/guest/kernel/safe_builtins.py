"""Builtins that the user's code cannot reach: our modules keep their own, and lend them to the standard library.

The user's code may replace what it likes in `builtins`, and finds it replaced the next time. What a context is made of
must work all the same.
"""

import _frozen_importlib_external as _machinery
import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OURS = "holdfast."
_NAMES = dict(vars(builtins))
_ABSENT = object()


class Finder:
    """Loads our modules with builtins of their own. Before it is installed, and on the host, they have the usual."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if not name.startswith(_OURS):
            return None
        spec = _machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None and spec.submodule_search_locations is None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def create_module(self, spec: "Any") -> None:
        return None

    def exec_module(self, module: "Any") -> None:
        module.__dict__["__builtins__"] = _NAMES
        exec(self._loader.get_code(module.__name__), module.__dict__)  # noqa: S102 - as every loader does

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)


def install(moved: "dict[str, str]") -> None:
    """From now on. `moved`: where what we are loaded from is now."""
    for before, after in moved.items():
        sys.path[:] = [after if each == before else each for each in sys.path]
        for name, module in list(sys.modules.items()):
            if name.startswith(_OURS[:-1]) and hasattr(module, "__path__"):
                module.__path__ = [each.replace(before, after, 1) for each in module.__path__]
    sys.meta_path.insert(0, Finder)


class Lent:
    """As a context manager, around work of ours that the standard library does: `builtins` is as it was in the
    beginning, and as the user's code left it afterwards."""

    def __init__(self) -> None:
        self._replaced: dict[str, Any] = {}

    def __enter__(self) -> None:
        there = vars(builtins)
        self._replaced = {
            name: there.get(name, _ABSENT) for name, value in _NAMES.items() if there.get(name, _ABSENT) is not value
        }
        for name in self._replaced:
            there[name] = _NAMES[name]

    def __exit__(self, *_: object) -> None:
        there = vars(builtins)
        for name, value in self._replaced.items():
            if value is _ABSENT:
                there.pop(name, None)
            else:
                there[name] = value
