"""What a notebook wants of the Python in its box beside executions: how values look, which names there are, what they
are. Brought into a context as source, by `holdfast.interpreter.jupyter`.
"""

import builtins
import json
import keyword
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LONGEST = 8 << 20
"""Characters of one form of a value."""
_MOST = 1_000
_WAYS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
)
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*\.?$|$")


def forms(value: "Any") -> "dict[str, str]":
    """A value by media type, in all the forms that it says it has. Pictures are in base64."""
    found = {"text/plain": repr(value)}
    for media, way in _WAYS:
        make = getattr(type(value), way, None)
        if make is None:
            continue
        try:
            made = make(value)
        except Exception:  # it is shown without this form
            continue
        if isinstance(made, tuple):
            made = made[0]  # the rest says how to show it
        if isinstance(made, bytes):
            import base64

            made = base64.b64encode(made).decode()
        if isinstance(made, str):
            found[media] = made
    return {media: made for media, made in found.items() if len(made) <= _LONGEST}


def show(names: "dict[str, Any]") -> None:
    """The value of the last execution."""
    _tell(forms(names.get("_")))


def display_by(tell: "Callable[..., Any]") -> "Callable[..., None]":
    """`display(...)`, which shows values in the middle of an execution."""

    def display(*values: "Any", **_options: "Any") -> None:
        """Show values in the notebook."""
        for value in values:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            tell(forms(value))

    return display


def complete(names: "dict[str, Any]", code: str) -> None:
    """What could stand at the end of the code: `{"matches": [...], "begun": characters that are there already}`."""
    begun = _NAME.search(code).group()  # type: ignore[union-attr]
    base, dot, prefix = begun.rpartition(".")
    if dot:
        found = _look_up(names, base)
        matches = {base + dot + name for name in _attributes(found) if name.startswith(prefix)}
    else:
        matches = {name for name in (*names, *dir(builtins), *keyword.kwlist) if name.startswith(prefix)}
    if not prefix.startswith("_"):
        matches = {name for name in matches if not name.rpartition(".")[2].startswith("_")}
    _tell({"matches": sorted(matches)[:_MOST], "begun": len(begun)})


def explain(names: "dict[str, Any]", name: str) -> None:
    """What is known of the thing of that name: `{"text": ...}`, or `{}`."""
    import inspect

    try:
        found = _look_up(names, name, strict=True)
    except LookupError:
        _tell({})
        return
    lines = []
    if callable(found):
        try:
            lines.append("Signature: %s%s" % (name, inspect.signature(found)))
        except (ValueError, TypeError):
            pass
    else:
        lines.append("Value:     %s" % _short(found))
    lines.append("Type:      %s" % type(found).__name__)
    doc = inspect.getdoc(found)
    if doc:
        lines.append("Docstring:\n%s" % doc)
    _tell({"text": "\n".join(lines)[:100_000]})


def _tell(document: "Any") -> None:
    sys.stdout.write(json.dumps(document))
    sys.stdout.flush()


def _short(value: "Any") -> str:
    text = repr(value)
    return text if len(text) <= 1_000 else text[:1_000] + "..."


def _attributes(value: "Any") -> "list[str]":
    try:
        return [str(name) for name in dir(value)]
    except Exception:
        return []


def _look_up(names: "dict[str, Any]", path: str, strict: bool = False) -> "Any":
    """By names and attributes only: nothing is called but what a property calls."""
    first, *rest = path.split(".")
    try:
        value = names[first] if first in names else getattr(builtins, first)
        for name in rest:
            value = getattr(value, name)
    except Exception:
        if strict:
            raise LookupError(path) from None
        return None
    return value
