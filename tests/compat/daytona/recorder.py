"""Which public methods of the Daytona SDK were called, with which parameters, and what they returned.

The inventory is read from the SDK itself, so a new version of it brings its own gaps to light.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from pydantic import BaseModel

_OTHER_MODULES: Final = {"object_storage"}
"""What no program calls: a part of `create`."""
_NOT_FOR_USERS: Final = {"model_post_init", "process_image_context"}
"""Public by name only: a hook of pydantic's, and a step of `create`."""


def classes(flavour: str) -> Iterator[type]:
    """The classes of one SDK whose methods programs call."""
    package = importlib.import_module(f"daytona._{flavour}")
    found = {each.name for each in pkgutil.iter_modules(package.__path__)}
    names = [f"{package.__name__}.{module}" for module in sorted(found - _OTHER_MODULES)]
    names.append("daytona.handle.pty_handle" if flavour == "sync" else "daytona.handle.async_pty_handle")
    for name in names:
        for kind in vars(importlib.import_module(name)).values():
            if inspect.isclass(kind) and kind.__module__ == name and not kind.__name__.startswith("_"):
                yield kind


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in _NOT_FOR_USERS
    }


def inventory(flavour: str) -> set[str]:
    """Every public method as `Class.method`, and each of its parameters as `Class.method(parameter)`."""
    found = set[str]()
    for kind in classes(flavour):
        for name, method in methods(kind).items():
            full = f"{kind.__name__}.{name}"
            parameters = list(inspect.signature(method).parameters)[1:]
            found |= {full, *(f"{full}({parameter})" for parameter in parameters)}
    return found


class Recorder:
    """Watches the methods of one SDK."""

    def __init__(self, flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flavour = flavour
        self.called: set[str] = set()
        self.mistyped: list[str] = []
        for kind in classes(flavour):
            for name, method in methods(kind).items():
                monkeypatch.setattr(kind, name, self._watched(f"{kind.__name__}.{name}", method))

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)
        promised = _hint(method)

        def note(*args: Any, **kwargs: Any) -> None:
            given = list(signature.bind(*args, **kwargs).arguments)[1:]
            self.called |= {name, *(f"{name}({parameter})" for parameter in given)}

        def check(value: Any) -> Any:
            wrong = mismatch(value, promised)
            if wrong:
                self.mistyped.append(f"{name}: {wrong}")
            return value

        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def watched_async(*args: Any, **kwargs: Any) -> Any:
                note(*args, **kwargs)
                return check(await method(*args, **kwargs))

            return watched_async

        @functools.wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            value = method(*args, **kwargs)
            return value if inspect.isawaitable(value) else check(value)

        return watched

    def missing(self) -> set[str]:
        return inventory(self.flavour) - self.called


def _hint(method: Callable[..., Any]) -> Any:
    """The type that a method returns. `typing.get_type_hints` fails where a parameter has a type for checkers only."""
    inner = inspect.unwrap(method)
    annotation = inner.__annotations__.get("return", Any)
    if not isinstance(annotation, str):
        return annotation
    found = eval(annotation, {**vars(typing), **inner.__globals__})  # noqa: S307
    return inner.__globals__[found] if isinstance(found, str) else found


def mismatch(value: Any, hint: Any, where: str = "result") -> str | None:
    """Says where a value is not what a type promises, down to the fields of models. None if it is all of that."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, (str, typing.TypeVar, typing.ForwardRef)):
        return None
    if hint is None or hint is type(None):
        return None if value is None else f"{where} is {value!r}, not None"
    if origin is typing.Annotated:
        return mismatch(value, arguments[0], where)
    if origin is typing.Literal:
        return None if value in arguments else f"{where} is {value!r}, not one of {arguments}"
    if origin in (typing.Union, types.UnionType):
        problems = [mismatch(value, each, where) for each in arguments]
        return None if None in problems else f"{where} is {value!r}, not {hint}"
    kind = origin or hint
    if kind is float:
        kind = (int, float)
    if not inspect.isclass(kind) and not isinstance(kind, tuple):
        return None
    inner: Any = value  # of which a checker knows nothing more than that it is of that kind
    if not isinstance(value, kind):
        return f"{where} is {type(value).__name__} {value!r:.100}, not {hint}"
    if origin is list:
        inside = (mismatch(each, arguments[0], f"{where}[{n}]") for n, each in enumerate(inner))
    elif origin in (dict, collections.abc.Mapping):
        inside = (mismatch(each, arguments[1], f"{where}[{key!r}]") for key, each in inner.items())
    elif isinstance(value, BaseModel):
        fields = type(value).model_fields
        inside = (mismatch(getattr(value, name), field.annotation, f"{where}.{name}") for name, field in fields.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        inside = (mismatch(getattr(value, name), each, f"{where}.{name}") for name, each in hints.items())
    else:
        return None
    return next((problem for problem in inside if problem), None)
