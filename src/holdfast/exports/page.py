"""A thread as one HTML page: timeline, changes and cost. Pure.

The page stands alone: it loads nothing, and has no script. Everything on a thread is untrusted, so every text is
escaped, characters that reorder or hide text are shown as what they are, and the page's own policy forbids the rest.
What agents say is Markdown. The page has a limit as a whole, and so has the work to make it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from itertools import pairwise
from typing import Any, Final

from holdfast.api.model.budgets import Cost
from holdfast.api.model.money import describe_cost, describe_in_full
from holdfast.api.thread.entries import Entry, is_passing
from holdfast.calendar_time import calendar_time
from holdfast.exports import prose
from holdfast.exports.marks import describe
from holdfast.guest.hub_messages import EXPIRED
from holdfast.visible_text import visible

MOST_ENTRIES: Final = 20_000
_MOST_TEXT: Final = 100_000
_MOST_SUMMARY: Final = 160
_MOST_OPTIONS: Final = 50
_MOST_PATCH: Final = 4_000_000
_MOST_TIMELINE: Final = 16_000_000
"""Characters of all entries together."""
_MOST_PROSE: Final = 500_000
"""Characters that are read as Markdown. Later ones are shown as they are."""
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_FILE: Final = re.compile(r"^diff --git ", re.MULTILINE)
_MARKS: Final = {"completed": "✓", "failed": "✗", "cancelled": "■", "orphaned": "✗"}
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Exported:
    """What a page shows."""

    thread: str
    title: str
    entries: Iterable[Entry]
    cut: bool = False
    """Whether there are more entries."""
    patch: str | None = None
    """The changes of the workspace, or None if they are not known."""
    patch_cut: bool = False
    cost: Cost | None = None
    """What the server counted for this thread, or None if it counted nothing."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """The same by run."""
    shows_cost: bool = True
    """Whether costs and tokens are shown, also those that agents report."""


@dataclass(slots=True)
class _Totals:
    runs: int = 0
    entries: int = 0
    first: int | None = None
    last: int = 0
    usage: dict[str, float] = field(default_factory=dict)
    length: int = 0
    prose: int = 0
    cut: bool = False


def render(exported: Exported) -> str:
    """Returns the page."""
    totals = _Totals(cut=exported.cut)
    timeline = "\n".join(_timeline(exported, totals))
    title = _text(exported.title) or "Thread"
    facts = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in _facts(exported, totals)
    )
    cut = f'<p class="cut">Only the first {totals.entries:,} entries are shown.</p>' if totals.cut else ""
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f'<body><header><div class="column"><h1>{title}</h1><dl>{facts}</dl></div></header>\n'
        f'<main class="column"><section aria-label="Timeline">{timeline}{cut}</section>\n{_changes(exported)}</main>\n'
        "</body></html>\n"
    )


def _facts(exported: Exported, totals: _Totals) -> Iterator[tuple[str, str]]:
    yield "thread", exported.thread
    if totals.first is not None:
        yield "began", f"{calendar_time(totals.first, UTC):%Y-%m-%d %H:%M UTC}"
        yield "lasted", _duration(totals.last - totals.first)
    yield "runs", str(totals.runs)
    yield "entries", f"{totals.entries:,}"
    if not exported.shows_cost:
        return
    tokens = sum(totals.usage.get(name, 0) for name in ("input", "output", "cacheRead", "cacheWrite"))
    if exported.cost is not None and exported.cost.calls:
        tokens = exported.cost.tokens
    if tokens:
        yield "tokens", f"{tokens:,.0f}"
    if cost := _cost(exported.cost, totals.usage.get("cost")):
        yield "cost", cost


def _cost(counted: Cost | None, reported: object) -> str:
    """Returns what calls have cost, or nothing if that is unknown. An agent that does not know a price reports 0."""
    if counted is not None and counted.calls:
        return describe_in_full(counted.cost, counted.unpriced)
    if isinstance(reported, int | float) and not isinstance(reported, bool) and reported > 0:
        return f"{describe_cost(reported)}, as the agent says"
    return ""


# --- the timeline ---


def _timeline(exported: Exported, totals: _Totals) -> Iterator[str]:
    prompted = False
    begin = 0
    for entry in exported.entries:
        payload, kind = entry.payload, entry.type
        event = kind.partition(".")[2]
        if is_passing(kind):
            continue
        if totals.entries >= MOST_ENTRIES or totals.length > _MOST_TIMELINE:
            totals.cut = True
            return
        totals.entries += 1
        totals.first = entry.ts if totals.first is None else min(totals.first, entry.ts)
        totals.last = max(totals.last, entry.ts)
        begin = begin or entry.ts
        made = ""
        if kind == "chat":
            made = _item("prompt", f'<div class="words">{_words(payload.get("text"))}</div>')
        elif kind == "signal.run.started":
            totals.runs += 1
            prompted = bool(payload.get("prompts"))
            model = payload.get("model")
            about = f"{_text(payload.get('agent'))}{f' · {_text(model)}' if model else ''}"
            made = _item("mark", f"<b>run</b> {about} <code>{_text(payload.get('run'))}</code>")
        elif kind == "signal.run.finished":
            made = _item("mark", _end(payload, exported, totals))
        elif kind == "signal.run.box":
            made = _item("mark", f"<b>box</b> <code>{_text(payload.get('box'))}</code> {_text(payload.get('how'))}")
        elif kind.startswith("signal."):
            said = describe(kind.removeprefix("signal."), payload)
            made = "" if said is None else _item("mark", _words(said))
        elif event == "user" and not prompted:
            made = _item("prompt", f'<div class="words">{_words(payload.get("text"))}</div>')
        elif event == "assistant":
            made = _said(payload, totals)
        elif event == "question":
            made = _question(payload)
        elif event == "answer":
            made = _answer(payload)
        elif event == "tool":
            made = _tool(payload)
        elif event == "compaction":
            made = _item("mark", _folded("<b>compaction</b> of what came before", payload.get("summary")))
        elif event == "notice" and payload.get("level") in ("warning", "error"):
            made = _item("mark bad", _words(payload.get("text")))
        if made:
            clock = _duration(entry.ts - begin) if entry.ts >= begin else ""
            totals.length += len(made)
            yield f'<div class="row"><span class="when">{clock}</span>{made}</div>'


def _said(payload: Mapping[str, Any], totals: _Totals) -> str:
    parts = []
    if payload.get("thinking"):
        parts.append(_folded("thinking", payload.get("thinking"), "thinking"))
    if isinstance(payload.get("text"), str) and payload["text"].strip():
        parts.append(_prose(payload["text"], totals))
    return _item("prose", "".join(parts)) if parts else ""


def _prose(text: str, totals: _Totals) -> str:
    totals.prose += len(text)
    if len(text) > prose.MOST or totals.prose > _MOST_PROSE:
        return f'<div class="words">{_words(text)}</div>'
    return prose.render_prose(_plain(text))


def _question(payload: Mapping[str, Any]) -> str:
    """A question of an agent, or what it asks to be permitted."""
    asks = "asks for permission" if payload.get("kind") == "permission" else "asks"
    options = payload.get("options")
    listed = [_text(each)[:_MOST_SUMMARY] for each in options[:_MOST_OPTIONS]] if isinstance(options, list) else []
    choices = f'<div class="quiet">{" · ".join(listed)}</div>' if listed else ""
    return _item("question", f'<b>the agent {asks}</b><div class="words">{_words(payload.get("text"))}</div>{choices}')


def _answer(payload: Mapping[str, Any]) -> str:
    answer = payload.get("answer")
    if answer == EXPIRED:
        return _item("mark", "nobody answered in time")
    return _item("question", f'<b>answer</b><div class="words">{_words(answer)}</div>')


def _tool(payload: Mapping[str, Any]) -> str:
    arguments = payload.get("arguments")
    shown = (
        arguments.get("command") or arguments.get("cmd") or arguments.get("path")
        if isinstance(arguments, dict)
        else None
    )
    line = shown if isinstance(shown, str) else "" if arguments is None else _json(arguments)
    status = str(payload.get("status") or "ok")
    state = "" if status == "ok" else f' <span class="bad">✗ {_text(status)}</span>'
    ms = payload.get("ms")
    took = f' <span class="quiet">{_duration(ms)}</span>' if isinstance(ms, int | float) else ""
    short = _text(line.strip()[:_MOST_SUMMARY])
    head = f'<code>{_text(payload.get("name"))}</code> <code class="line">{short}</code>{state}{took}'
    body = (
        ""
        if arguments is None
        else f"<pre>{_words(arguments if isinstance(arguments, str) else _json(arguments, 2))}</pre>"
    )
    return _item(
        "tool", f"<details><summary>{head}</summary>{body}<pre>{_words(payload.get('result'))}</pre></details>"
    )


def _end(payload: Mapping[str, Any], exported: Exported, totals: _Totals) -> str:
    status = str(payload.get("status"))
    usage = payload.get("usage")
    counted = exported.costs.get(str(payload.get("run")))
    spent = _cost(counted, usage.get("cost") if isinstance(usage, dict) else None)
    cost = f" · {_text(spent)}" if spent and exported.shows_cost else ""
    if isinstance(usage, dict):
        for name, value in usage.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                totals.usage[str(name)] = totals.usage.get(str(name), 0) + value
    ms = payload.get("ms")
    took = f" in {_duration(ms)}" if isinstance(ms, int | float) and ms else ""
    error = payload.get("error")
    why = f': <span class="bad">{_words(error.get("message"))}</span>' if isinstance(error, dict) else ""
    style = "good" if status == "completed" else "bad"
    return f'<b class="{style}">{_MARKS.get(status, "·")} {_text(status)}</b>{took}{cost}{why}'


def _item(style: str, body: str) -> str:
    return f'<div class="{style}">{body}</div>'


def _folded(head: str, text: object, style: str = "") -> str:
    return f'<details class="{style}"><summary>{head}</summary><div class="words">{_words(text)}</div></details>'


# --- the changes ---


def _changes(exported: Exported) -> str:
    if exported.patch is None:
        return ""
    patch = exported.patch[:_MOST_PATCH]
    starts = [found.start() for found in _FILE.finditer(patch)]
    files = [patch[begin:end] for begin, end in pairwise((*starts, len(patch)))]
    parts = "".join(_file(file) for file in files) or '<p class="quiet">No file was changed.</p>'
    cut = (
        '<p class="cut">There are more changes than fit here.</p>'
        if exported.patch_cut or len(patch) < len(exported.patch)
        else ""
    )
    return f'<section aria-label="Changes"><h2>Changes</h2>{parts}{cut}</section>'


def _file(patch: str) -> str:
    head, _, body = patch.partition("\n@@")
    added = removed = 0
    lines = []
    for line in (f"@@{body}" if body else head).splitlines()[:50_000]:
        style = {"+": "add", "-": "del", "@": "at"}.get(line[:1], "")
        added += style == "add" and body != ""
        removed += style == "del" and body != ""
        lines.append(f'<span class="{style}">{_text(line)}</span>' if style else _text(line))
    names = head.splitlines()[0].removeprefix("diff --git ")
    name = names.rpartition(" b/")[2].strip('"') or names
    counts = f'<span class="good">+{added}</span> <span class="bad">−{removed}</span>'
    is_open = " open" if len(lines) <= 80 else ""
    head = f"<summary><code>{_text(name)}</code> {counts}</summary>"
    shown = "\n".join(lines)
    return f'<details{is_open} class="file">{head}<pre>{shown}</pre></details>'


# --- text ---


def _text(value: object) -> str:
    """Returns a value as HTML. Characters that control a terminal, or that hide or reorder text, become visible."""
    return html.escape(_plain("" if value is None else str(value)))


def _plain(text: str) -> str:
    return visible(_ANSI.sub("", text).replace("\r\n", "\n"))


def _words(value: object) -> str:
    text = "" if value is None else value if isinstance(value, str) else _json(value)
    if len(text) <= _MOST_TEXT:
        return _text(text)
    return f'{_text(text[:_MOST_TEXT])}<span class="cut">… {len(text) - _MOST_TEXT:,} more characters</span>'


def _json(value: object, indent: int | None = None) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent)[: 2 * _MOST_TEXT]
    except (TypeError, ValueError, RecursionError):
        return str(value)[:_MOST_TEXT]


def _duration(milliseconds: float) -> str:
    seconds = max(0.0, milliseconds / 1000)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fbfbf9; --raised: #f3f4f1; --ink: #1c2022; --soft: #5f676b; --line: #e2e4e0;
  --accent: #0f6b62; --bad: #a8322a; --add: #e4f2e7; --del: #f8e6e4;
  --mono: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181a; --raised: #1c2124; --ink: #d9dedd; --soft: #949ea1;
  --line: #2a3134; --accent: #5dbcae; --bad: #e8857b; --add: #17301f; --del: #361f1e; } }
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); font: 15px/1.55 system-ui, "DejaVu Sans", sans-serif; }
body { margin: 0; padding-bottom: 4rem; overflow-wrap: anywhere; }
h1, h2, dl, dd, pre, p { margin: 0; }
h1 { font-size: 1.15rem; } h2 { font-size: 1rem; margin: 2rem 0 .6rem; }
.column { max-width: 62rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding: 1rem 0 .8rem; border-bottom: 1px solid var(--line); margin-bottom: 1.2rem; }
dl { display: flex; flex-wrap: wrap; gap: .1rem 1.4rem; margin-top: .4rem; font-size: .867rem; }
dl div { display: flex; gap: .45rem; } dt, .quiet, .when, .cut { color: var(--soft); }
code, pre { font-family: var(--mono); font-size: .867em; }
pre { white-space: pre-wrap; background: var(--raised); padding: .6rem .8rem; border-radius: 4px; max-height: 40rem;
  overflow: auto; margin: .35rem 0; }
.row { display: grid; grid-template-columns: 5.4rem minmax(0, 1fr); column-gap: .9rem; padding: .16rem 0;
  align-items: baseline; }
.when { font-size: .733rem; text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.words { white-space: pre-wrap; max-width: 48rem; }
.prompt { border-left: 3px solid var(--accent); padding: .35rem 0 .35rem .9rem; font-weight: 550; margin-top: .9rem; }
.mark { font-size: .867rem; color: var(--soft); } .mark b { font-weight: 600; color: var(--accent); }
.prose { padding: .2rem 0; max-width: 48rem; } .prose p, .prose ul, .prose ol, .prose table { margin: .3rem 0; }
.prose h3, .prose h4, .prose h5, .prose h6 { margin: .7rem 0 .2rem; font-size: 1rem; }
.prose blockquote { margin: .3rem 0; padding-left: .8rem; border-left: 2px solid var(--line); color: var(--soft); }
.prose table { border-collapse: collapse; }
.prose th, .prose td { border: 1px solid var(--line); padding: .1rem .5rem; }
.question { border-left: 3px solid var(--line); padding: .2rem 0 .2rem .9rem; }
.thinking { color: var(--soft); font-size: .867rem; }
.good { color: var(--accent); } .bad, .mark b.bad { color: var(--bad); }
summary { cursor: pointer; } summary span { font-size: .867rem; } .tool .line { color: var(--soft); }
.tool summary { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.file { margin: .5rem 0; } .file pre span { display: inline; } .add { background: var(--add); }
.del { background: var(--del); }
.at { color: var(--accent); }
@media (max-width: 40rem) { .row { grid-template-columns: minmax(0, 1fr); } .when { text-align: left; } }
"""
