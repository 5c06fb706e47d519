"""What a notebook needs beside executions: forms of values, completion and inspection. Loaded on demand, by
`holdfast.interpreter.jupyter`.
"""

import builtins
import keyword
import re
import sys

from holdfast.guest.kernel import displays, json_codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LONGEST = 8 << 20
"""The longest form of a value, in characters."""
_MOST = 1_000
_FORMS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
    ("application/javascript", "_repr_javascript_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
)
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*\.?$|$")


def forms(value: "Any") -> "dict[str, str]":
    """The forms of a value, by media type. Images are in base64."""
    found = {"text/plain": repr(value)}
    for media, method in _FORMS:
        make = getattr(type(value), method, None)
        if make is None:
            continue
        try:
            made = make(value)
        except Exception:  # it is shown in its other forms
            continue
        if isinstance(made, tuple):
            made = made[0]  # the rest is metadata
        if isinstance(made, bytes):
            import base64

            made = base64.b64encode(made).decode()
        if isinstance(made, str):
            found[media] = made
    return {media: made for media, made in found.items() if len(made) <= _LONGEST}


def show() -> None:
    """Print the forms of the value of the last execution."""
    _print_json(forms(_names.get("_")))


_names: "dict[str, Any]" = {}
"""The globals of the notebook."""


def set_up(names: "dict[str, Any]", tell: "Callable[..., Any]") -> None:
    """Define what notebooks expect. Calling it again restores what code has overwritten."""
    global _names
    _names = names
    shell = Shell(names)
    shows = displays.Display(tell, forms)
    names["display"] = shows.display
    names["get_ipython"] = lambda: shell
    displays.install(shows, names["get_ipython"])


def complete(code: str) -> None:
    """Print completions for the end of the code: `{"matches": [...], "begun": length of the part that exists}`."""
    begun = _NAME.search(code).group()  # type: ignore[union-attr]
    base, dot, prefix = begun.rpartition(".")
    if dot:
        found = _look_up(_names, base)
        matches = {base + dot + name for name in _attributes(found) if name.startswith(prefix)}
    else:
        matches = {name for name in (*_names, *dir(builtins), *keyword.kwlist) if name.startswith(prefix)}
    if not prefix.startswith("_"):
        matches = {name for name in matches if not name.rpartition(".")[2].startswith("_")}
    _print_json({"matches": sorted(matches)[:_MOST], "begun": len(begun)})


def explain(name: str) -> None:
    """Print a description of a name: `{"text": ...}`, or `{}`."""
    text = describe(_names, name)
    _print_json({} if text is None else {"text": text})


def describe(names: "dict[str, Any]", name: str) -> "str | None":
    import inspect

    try:
        found = _look_up(names, name, strict=True)
    except LookupError:
        return None
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
    return "\n".join(lines)[:100_000] + "\n"


class Events:
    """Libraries register callbacks for the end of a cell. They are ignored, because figures are collected anyway."""

    def register(self, event: str, function: "Any") -> None:
        pass

    def unregister(self, event: str, function: "Any") -> None:
        pass


class Shell:
    """What `get_ipython()` returns: enough of IPython for `!command` and the most common magics."""

    def __init__(self, names: "dict[str, Any]") -> None:
        self._names = names
        self.user_ns = names
        self.config: dict[str, Any] = {}
        self.events = Events()

    def system(self, command: str) -> None:
        """`!command`"""
        self._start(["/bin/sh", "-c", command])

    def getoutput(self, command: str) -> "list[str]":
        """`lines = !command`"""
        import subprocess

        done = subprocess.run(["/bin/sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.stdout.decode("utf-8", "replace").splitlines()

    def run_line_magic(self, name: str, line: str, *_: "Any") -> "Any":
        """`%name line`"""
        known = {
            "cd": self._cd, "env": self._env, "matplotlib": self._nothing, "pinfo": self._pinfo, "pip": self._pip,
            "pwd": self._pwd, "time": self._time, "timeit": self._timeit,
        }  # fmt: skip
        if name not in known:
            raise NameError("the magic %%%s is not supported: use %s" % (name, ", ".join("%" + each for each in known)))
        return known[name](line.strip())

    def run_cell_magic(self, name: str, line: str, cell: str) -> "Any":
        """`%%name line`, and the lines below it"""
        if name in ("bash", "sh"):
            return self._start(["/bin/" + name, "-c", cell])
        if name == "time":
            return self._time(cell)
        raise NameError("the magic %%%%%s is not supported: use %%%%bash, %%%%sh, %%%%time" % name)

    def _start(self, argv: "list[str]") -> None:
        import subprocess

        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode
        self._names["_exit_code"] = code

    def _cd(self, line: str) -> str:
        import os

        os.chdir(os.path.expanduser(line or "~"))
        return os.getcwd()

    def _pwd(self, _line: str) -> str:
        import os

        return os.getcwd()

    def _env(self, line: str) -> "Any":
        import os

        name, given, value = line.partition("=")
        if given:
            os.environ[name.strip()] = value.strip()
            return None
        return os.environ.get(name) if name else dict(os.environ)

    def _pip(self, line: str) -> None:
        import shlex

        self._start([sys.executable, "-m", "pip", *shlex.split(line)])

    def _pinfo(self, line: str) -> None:
        sys.stdout.write(describe(self._names, line) or "%s is not found\n" % line)

    def _nothing(self, _line: str) -> None:
        pass

    def _time(self, code: str) -> "Any":
        import time

        began = time.perf_counter()
        try:
            try:
                compiled = compile(code, "<timed>", "eval")
            except SyntaxError:
                exec(compile(code, "<timed>", "exec"), self._names)
                return None
            return eval(compiled, self._names)
        finally:
            sys.stdout.write("Wall time: %.3g s\n" % (time.perf_counter() - began))

    def _timeit(self, code: str) -> None:
        import timeit

        timer = timeit.Timer(code, globals=self._names)
        count, took = timer.autorange()
        best = min([took, *timer.repeat(3, count)]) / count
        sys.stdout.write("%.3g s per loop (best of 4, %d loops each)\n" % (best, count))


def _print_json(document: "Any") -> None:
    sys.stdout.write(json_codec.dumps(document))
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
    """Look up a dotted name. Only properties are evaluated."""
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
