"""`display` and the classes that it shows, under the names of IPython: `from IPython.display import display, HTML`.

A box may lack IPython; then a module of that name has what notebooks use most. If it has IPython, its `display` calls
ours.
"""

import _frozen_importlib_external as _machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Forms = dict[str, str]

_HOME = "IPython.core.display_functions"


class Display:
    """Shows values during an execution. `tell` sends a message; `forms` returns the forms of a value by media type."""

    def __init__(self, tell: "Callable[[dict[str, Any]], Any]", forms: "Callable[[Any], Forms]") -> None:
        self._tell = tell
        self._forms = forms

    def display(
        self, *values: "Any", raw: bool = False, display_id: "Any" = None, clear: bool = False, **options: "Any"
    ) -> "Handle | None":
        """Show values in the notebook. With `raw` they are forms by media type; with `display_id` they can be updated
        later."""
        update = bool(options.get("update"))
        if clear:
            self.clear_output(wait=True)
        id = os.urandom(8).hex() if display_id is True else display_id
        for value in values:
            self._send({"forms": value if raw else self._forms(value), "id": id, "update": update})
        return Handle(self, id) if id is not None and not update else None

    def update_display(self, value: "Any", *, display_id: str, **options: "Any") -> None:
        self.display(value, display_id=display_id, update=True, **options)

    def clear_output(self, wait: bool = False) -> None:
        """Remove the output of the cell; with `wait`, when there is new output."""
        self._send({"clear": True, "wait": wait})

    def _send(self, message: "dict[str, Any]") -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self._tell(message)


class Handle:
    """A displayed value that can be updated."""

    def __init__(self, by: Display, display_id: str) -> None:
        self._by = by
        self.display_id = display_id

    def update(self, value: "Any", **options: "Any") -> None:
        self._by.update_display(value, display_id=self.display_id, **options)

    def display(self, value: "Any", **options: "Any") -> None:
        self._by.display(value, display_id=self.display_id, **options)


class Shown:
    """Data that is shown in the form of its class."""

    media = ""

    def __init__(self, data: "Any" = None, url: "str | None" = None, filename: "str | None" = None, **_: "Any") -> None:
        if data is None and filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        self.data = data
        self.url = url

    def __repr__(self) -> str:
        return "<%s object>" % type(self).__name__

    def _text(self) -> str:
        return self.data.decode("utf-8", "replace") if isinstance(self.data, bytes) else str(self.data)


class HTML(Shown):
    def _repr_html_(self) -> str:
        return self._text()


class Markdown(Shown):
    def _repr_markdown_(self) -> str:
        return self._text()


class Latex(Shown):
    def _repr_latex_(self) -> str:
        return self._text()


class Math(Shown):
    def _repr_latex_(self) -> str:
        return "$\\displaystyle %s$" % self._text().strip("$")


class SVG(Shown):
    def _repr_svg_(self) -> str:
        return self._text()


class Javascript(Shown):
    def _repr_javascript_(self) -> str:
        return self._text()


class JSON(Shown):
    def _repr_json_(self) -> "Any":
        return self.data


class Code(Shown):
    def _repr_markdown_(self) -> str:
        return "```\n%s\n```" % self._text()


class Pretty(Shown):
    def __repr__(self) -> str:
        return self._text()


class Image(Shown):
    """An image: bytes of PNG or JPEG, a file, or a URL."""

    def __init__(
        self, data: "Any" = None, url: "str | None" = None, filename: "str | None" = None, **more: "Any"
    ) -> None:
        if isinstance(data, str):  # a file or a URL
            data, url, filename = None, data if "://" in data else url, filename if "://" in data else data
        super().__init__(data, url, filename, **more)

    def _is_jpeg(self) -> bool:
        return isinstance(self.data, bytes) and self.data[:2] == b"\xff\xd8"

    def _repr_png_(self) -> "bytes | None":
        return self.data if isinstance(self.data, bytes) and not self._is_jpeg() else None

    def _repr_jpeg_(self) -> "bytes | None":
        return self.data if self._is_jpeg() else None

    def _repr_html_(self) -> "str | None":
        return '<img src="%s"/>' % self.url.replace('"', "&quot;") if self.url and self.data is None else None


KINDS = (HTML, Markdown, Latex, Math, SVG, Javascript, JSON, Code, Pretty, Image)


def install(shows: Display, shell: "Callable[[], Any]") -> None:
    """Install the display functions under the names of IPython."""
    functions = {
        "display": shows.display,
        "update_display": shows.update_display,
        "clear_output": shows.clear_output,
    }
    known = sys.modules.get(_HOME)
    if known is not None:
        vars(known).update(functions)
    elif _machinery.PathFinder.find_spec("IPython") is not None:
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _Finder)]
        sys.meta_path.insert(0, _Finder(functions))
    else:
        _stand_in({**functions, **{kind.__name__: kind for kind in KINDS}, "DisplayHandle": Handle}, shell)


def _stand_in(names: "dict[str, Any]", shell: "Callable[[], Any]") -> None:
    made = {}
    for name in ("IPython", "IPython.core", "IPython.display", "IPython.core.display", _HOME):
        made[name] = sys.modules[name] = type(sys)(name, "The parts of IPython that notebooks use most.")
    for name in ("IPython.display", "IPython.core.display", _HOME):
        vars(made[name]).update(names)
    made["IPython"].__path__ = made["IPython.core"].__path__ = []
    for name, module in made.items():
        above, _, last = name.rpartition(".")
        if above:
            setattr(made[above], last, module)
    # Libraries check the version, and do extra work for old versions.
    vars(made["IPython"]).update(get_ipython=shell, version_info=(9, 0, 0), __version__="9.0.0")


class _Finder:
    """Replaces the display functions of IPython by ours when it is imported: without a shell, they would print."""

    def __init__(self, functions: "dict[str, Any]") -> None:
        self._functions = functions

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != _HOME:
            return None
        spec = _machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: "Any") -> None:
                load(module)
                vars(module).update(self._functions)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
