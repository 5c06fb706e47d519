"""Markdown of agents as HTML. Pure.

Nothing of the text becomes markup by itself: it is parsed into tokens, and only those known here get a tag, without
attributes. A link is its text and its address, so that nobody is led elsewhere by what an agent wrote; an image is not
loaded.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MOST: Final = 10_000
"""Characters. Longer texts are shown as they are: parsing may take time that grows with the square of them."""
_TAGS: Final = {
    "paragraph": "p",
    "blockquote": "blockquote",
    "bullet_list": "ul",
    "ordered_list": "ol",
    "list_item": "li",
    "table": "table",
    "thead": "thead",
    "tbody": "tbody",
    "tr": "tr",
    "th": "th",
    "td": "td",
    "strong": "strong",
    "em": "em",
    "s": "s",
}
_HEADINGS: Final = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}
"""Below those of the page."""


def render_prose(text: str) -> str:
    """Returns a text as HTML. Its characters have to be visible ones already."""
    if len(text) > MOST:
        return f'<div class="words">{html.escape(text)}</div>'
    return "".join(_blocks(_parser().parse(text)))


@functools.cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # here, because most commands and servers export nothing

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def _blocks(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        name, _, edge = token.type.rpartition("_")
        if token.hidden:  # the paragraph of an item in a list without gaps
            continue
        if token.type == "inline":
            yield "".join(_inline(token.children or ()))
        elif token.type in ("fence", "code_block"):
            yield f"<pre>{html.escape(token.content)}</pre>"
        elif token.type == "hr":
            yield "<hr>"
        elif edge in ("open", "close") and (tag := _HEADINGS.get(token.tag) or _TAGS.get(name)):
            yield f"<{tag}>" if edge == "open" else f"</{tag}>"
        else:
            yield html.escape(token.content)


def _inline(tokens: Sequence[Token]) -> Iterator[str]:
    links: list[tuple[str, str]] = []
    shown = ""
    for token in tokens:
        name, _, edge = token.type.rpartition("_")
        if token.type == "link_open":
            links.append((str(token.attrs.get("href", "")), shown))
        elif token.type == "link_close":
            address, before = links.pop()
            if address != html.unescape(shown[len(before) :]):
                shown += f" (<code>{html.escape(address)}</code>)"
        elif token.type == "image":
            shown += f"{html.escape(token.content)} (<code>{html.escape(str(token.attrs.get('src', '')))}</code>)"
        elif token.type == "code_inline":
            shown += f"<code>{html.escape(token.content)}</code>"
        elif token.type == "softbreak":
            shown += "\n"
        elif token.type == "hardbreak":
            shown += "<br>"
        elif edge in ("open", "close") and (tag := _TAGS.get(name)):
            shown += f"<{tag}>" if edge == "open" else f"</{tag}>"
        else:
            shown += html.escape(token.content)
    yield shown
