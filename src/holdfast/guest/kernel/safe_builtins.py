"""Builtins that user code cannot change. Our modules have their own copy, and restore it for the standard library.

User code may replace anything in `builtins`, and the replacement stays. Our modules must work anyway.
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
    """Loads our modules with a copy of the builtins. On the host it is not installed, and they have the usual ones."""

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
    """Install the finder. `moved` maps old to new paths of our archive."""
    for before, after in moved.items():
        sys.path[:] = [after if each == before else each for each in sys.path]
        for name, module in list(sys.modules.items()):
            if name.startswith(_OURS[:-1]) and hasattr(module, "__path__"):
                module.__path__ = [each.replace(before, after, 1) for each in module.__path__]
    sys.meta_path.insert(0, Finder)


class OriginalBuiltins:
    """A context manager that restores the original `builtins` while our code uses the standard library. Afterwards the
    replacements of the user are back."""

    def __init__(self) -> None:
        self._replaced: dict[str, Any] = {}

    def __enter__(self) -> None:
        found = vars(builtins)
        self._replaced = {
            name: found.get(name, _ABSENT) for name, value in _NAMES.items() if found.get(name, _ABSENT) is not value
        }
        for name in self._replaced:
            found[name] = _NAMES[name]

    def __exit__(self, *_: object) -> None:
        found = vars(builtins)
        for name, value in self._replaced.items():
            if value is _ABSENT:
                found.pop(name, None)
            else:
                found[name] = value
