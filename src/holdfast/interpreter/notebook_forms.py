"""Filters what code in a box shows in a notebook. Pure functions.

The page of Jupyter runs scripts in an output, and a script can use the API of Jupyter: files, terminals and kernels of
this machine. The page also fetches images, which would let a box without network send data. So no script and nothing
that uses the network reaches the page. HTML is rewritten with the elements and attributes that are listed here; an SVG
becomes an image, which runs no script.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping
from typing import Any, Final

_PLAIN: Final = "text/plain"
_HTML: Final = "text/html"
_MARKDOWN: Final = "text/markdown"
_SVG: Final = "image/svg+xml"
_IMAGES: Final = ("image/png", "image/jpeg", "image/gif")
_LONGEST: Final = 8 << 20
_LONGEST_HTML: Final = 2 << 20
_DEEPEST: Final = 200
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=\s]*")

_ELEMENTS: Final = frozenset(
    (
        "a", "abbr", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del", "details", "div", "dl",
        "dt", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "ins", "kbd", "li", "mark", "ol", "p", "pre",
        "q", "s", "samp", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th",
        "thead", "tr", "tt", "u", "ul", "var",
    )
)  # fmt: skip
_EMPTY: Final = frozenset(("br", "col", "hr", "img"))
"""Elements without an end tag."""
_DROPPED: Final = frozenset(
    (
        "applet", "audio", "canvas", "frameset", "math", "object", "select", "svg", "template", "video",
    )
)  # fmt: skip
"""Elements that are dropped with their content, which has other rules or is not text."""
_RAW: Final = frozenset(
    (
        "iframe", "noembed", "noframes", "noscript", "plaintext", "script", "style", "textarea", "title", "xmp",
    )
)  # fmt: skip
"""The same, and their content is not parsed as markup."""
_BEGIN: Final = re.compile(r"<(?=/?[A-Za-z]|[!?])")
_TAG: Final = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]*)")
_ATTRIBUTE: Final = re.compile(
    r"""([^\s"'<>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+)))?""",
)
_ATTRIBUTES: Final[Mapping[str, re.Pattern[str]]] = {
    "align": re.compile(r"left|right|center|justify"),
    "alt": re.compile(r".*", re.DOTALL),
    "border": re.compile(r"\d{1,2}"),
    "class": re.compile(r"dataframe"),
    "colspan": re.compile(r"\d{1,4}"),
    "dir": re.compile(r"ltr|rtl|auto"),
    "height": re.compile(r"\d{1,5}"),
    "href": re.compile(r"https?://[!-~]*", re.IGNORECASE),
    "rowspan": re.compile(r"\d{1,4}"),
    "src": re.compile(r"data:image/(?:png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/=\s]*"),
    "start": re.compile(r"\d{1,9}"),
    "title": re.compile(r".*", re.DOTALL),
    "width": re.compile(r"\d{1,5}%?"),
}
_STYLES: Final = frozenset(
    (
        "background-color", "color", "font-family", "font-size", "font-style", "font-weight", "text-align",
        "text-decoration", "vertical-align", "white-space",
    )
)  # fmt: skip
_STYLE_VALUE: Final = re.compile(r"[#\w .,%-]+|(?:rgb|rgba|hsl|hsla)\([\d .,%]+\)")
_MARKUP: Final = re.compile(r"[<&]")
_IMAGE_MARK: Final = re.compile(r"(?<!!)!+(?=\[)")
_SCRIPT_ADDRESS: Final = re.compile(r"(javascript|vbscript)(\\?:)", re.IGNORECASE)
_CONTROLS: Final = re.compile(r"(\x1b\[[0-9;]{0,64}[mKA])|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def safe_forms(forms: Any) -> dict[str, str]:
    """Return the forms of a value that a page may show, by media type. There is always at least one."""
    if not isinstance(forms, Mapping):
        return {_PLAIN: terminal_text(str(forms)[:_LONGEST])}
    given = {media: form for media, form in forms.items() if isinstance(media, str) and isinstance(form, str)}
    shown: dict[str, str] = {}
    for media, form in given.items():
        if len(form) > _LONGEST:
            continue
        if media in (_PLAIN, "text/latex"):
            shown[media] = terminal_text(form)
        elif media in _IMAGES and _BASE64.fullmatch(form):
            shown[media] = form
        elif media == _MARKDOWN:
            shown[media] = safe_markdown(form)
        elif media == _HTML and len(form) <= _LONGEST_HTML and (written := safe_html(form)).strip():
            shown[media] = written
    if _SVG in given and _HTML not in shown and len(given[_SVG]) <= _LONGEST:
        svg = base64.b64encode(given[_SVG].encode("utf-8", "replace")).decode()
        shown[_HTML] = f'<img src="data:{_SVG};base64,{svg}">'
    return shown or {_PLAIN: "(this output has no form that can be shown in a notebook of a box)"}


def safe_markdown(text: str) -> str:
    """Remove HTML and script URLs, and turn images into links."""
    quoted = _MARKUP.sub(lambda found: html.escape(found[0]), text)
    return _SCRIPT_ADDRESS.sub(r"\1 \2", _IMAGE_MARK.sub("", quoted))


def safe_html(text: str) -> str:
    """Rewrite HTML with listed elements and attributes only, and close every element."""
    return _Writer(text).write()


def terminal_text(text: str) -> str:
    """Keep the escape sequences for colours and progress bars, and replace all others."""
    return _CONTROLS.sub(lambda found: found[1] or "�", text)


class _Writer:
    """Reads any markup in one pass, in linear time, which parsers of the standard library do not guarantee. It need not
    parse like a browser, because it writes only listed names."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces: list[str] = []
        self._open: list[str] = []
        self._dropped: list[str] = []
        """Open elements that are dropped, the outermost first."""

    def write(self) -> str:
        at = 0
        while at < len(self._text):
            found = _BEGIN.search(self._text, at)
            self._write_text(self._text[at : found.start() if found else None])
            if found is None:
                break
            at = self._markup(found.start())
        return "".join((*self._pieces, *(f"</{each}>" for each in reversed(self._open))))

    def _markup(self, begin: int) -> int:
        """Handle the markup at `begin`. Returns its end. Markup without an end is dropped."""
        text = self._text
        if text.startswith("<!--", begin):
            return self._after("-->", begin + 4)
        if text.startswith(("<!", "<?"), begin):
            return self._after(">", begin)
        tag = _TAG.match(text, begin)
        assert tag is not None
        name, at, given = tag[2].lower(), tag.end(), []
        while at < len(text) and text[at] != ">":
            found = _ATTRIBUTE.match(text, at)
            if found is None:
                at += 1  # a space, a slash, or garbage
                continue
            given.append((found[1].lower(), next((each for each in found.group(2, 3, 4) if each is not None), "")))
            at = found.end()
        if at >= len(text):
            return at
        if tag[1]:
            self._end(name)
            return at + 1
        if name in _RAW:
            closing = re.compile(f"</{name}", re.IGNORECASE).search(text, at)
            return len(text) if closing is None else self._after(">", closing.end())
        self._begin(name, given)
        return at + 1

    def _after(self, end: str, at: int) -> int:
        found = self._text.find(end, at)
        return len(self._text) if found < 0 else found + len(end)

    def _begin(self, tag: str, given: list[tuple[str, str]]) -> None:
        if self._dropped or tag in _DROPPED:
            if tag in _DROPPED and len(self._dropped) < _DEEPEST:
                self._dropped.append(tag)
            return
        if tag not in _ELEMENTS or (tag not in _EMPTY and len(self._open) >= _DEEPEST):
            return
        self._pieces.append(f"<{tag}{_attributes(tag, given)}>")
        if tag not in _EMPTY:
            self._open.append(tag)

    def _end(self, tag: str) -> None:
        if self._dropped:
            if tag in self._dropped:
                del self._dropped[self._dropped.index(tag) :]
            return
        if tag in self._open:
            while (last := self._open.pop()) != tag:
                self._pieces.append(f"</{last}>")
            self._pieces.append(f"</{tag}>")

    def _write_text(self, text: str) -> None:
        if text and not self._dropped:
            self._pieces.append(html.escape(_unescaped(text), quote=False))


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a character reference with thousands of digits
        return text


def _attributes(tag: str, given: list[tuple[str, str]]) -> str:
    kept: dict[str, str] = {}
    for name, written in given:
        if name in kept:
            continue
        value = _unescaped(written)
        if name == "style":
            if style := _style(value):
                kept[name] = style
        elif (name != "src" or tag == "img") and (rule := _ATTRIBUTES.get(name)) and rule.fullmatch(value):
            kept[name] = value
    if "href" in kept:
        kept |= {"target": "_blank", "rel": "noopener noreferrer"}
    return "".join(f' {name}="{html.escape(value)}"' for name, value in kept.items())


def _style(value: str) -> str:
    pairs = (each.partition(":") for each in value.split(";"))
    styles = ((name.strip().lower(), what.strip()) for name, _, what in pairs)
    return "; ".join(f"{name}: {what}" for name, what in styles if name in _STYLES and _STYLE_VALUE.fullmatch(what))
