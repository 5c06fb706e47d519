"""Describes a tool call of any agent in one line: what was done, and the result. Pure.

Agents name their tools differently, so the kind of a call is recognised by the shape of its arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.cli.terminal.agent_text import one_line, plain

_COMMANDS: Final = ("command", "cmd", "script")
_PATHS: Final = ("path", "file_path", "filePath", "filename", "file", "notebook_path")
_BEFORE: Final = ("oldText", "old_string", "oldString", "old_str", "old")
_AFTER: Final = ("newText", "new_string", "newString", "new_str", "new")
_CONTENTS: Final = ("content", "contents", "file_text", "text")
_PATCHES: Final = ("patch", "input", "patchText", "diff")
_QUERIES: Final = ("pattern", "query", "url", "regex", "glob")
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash", "/bin/zsh"})
_EXIT: Final = re.compile(
    r"\W*(?:(?:command|process)\s+)?"
    r"(?:exited with (?:exit )?(?:code|status)|exit(?: |_)?(?:code|status)):?\s*(-?\d+)\W*",
    re.IGNORECASE,
)
_WORKSPACE: Final = "/workspace/"
_LONG: Final = 200


@dataclass(frozen=True, slots=True)
class ToolLine:
    """`mark` and `what` describe the call. No field contains control characters."""

    mark: str
    what: str
    result: str = ""
    added: int | None = None
    removed: int | None = None


def describe_call(name: str, arguments: Any) -> ToolLine:
    """Describe a call that has started."""
    values = arguments if isinstance(arguments, Mapping) else {}
    if isinstance(arguments, str) and "*** Begin Patch" in arguments:
        values = {"patch": arguments}
    command = _command(values)
    if command:
        return ToolLine("$", one_line(command))
    edit = _describe_edit(values)
    if edit is not None:
        return edit
    path = _first(values, _PATHS)
    shown = path if path else _first(values, _QUERIES)
    label = one_line(name) or "tool"
    if shown:
        return ToolLine("·", f"{label} {_short_path(one_line(shown))}")
    rest = json.dumps(arguments, ensure_ascii=False, default=str) if arguments else ""
    return ToolLine("·", f"{label} {one_line(rest[:_LONG])}".rstrip())


def describe_tool(name: str, arguments: Any, result: Any, status: str) -> ToolLine:
    """Describe a call that has ended."""
    line = describe_call(name, arguments)
    text = plain(result) if isinstance(result, str) else ""
    if status == "interrupted":
        shown = "interrupted"
    elif line.mark == "$":
        shown = summarize_output(text, failed=status == "error")
    elif status == "error":
        shown = one_line(text) or "failed"
    elif line.mark == "✎":
        shown = ""
    else:
        lines = [each for each in text.split("\n") if each.strip()]
        shown = lines[0].strip() if len(lines) == 1 else f"{len(lines)} lines" if lines else ""
    return ToolLine(line.mark, line.what, shown, line.added, line.removed)


def summarize_output(text: str, *, failed: bool) -> str:
    """The last line of a command's output, where test runners, compilers and installers print their result."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    code = ""
    while lines and (match := _EXIT.fullmatch(lines[-1])):
        code = f"exit {match[1]}" if match[1] != "0" else ""
        lines.pop()
    last = lines[-1] if lines else ""
    if last == "(no output)":
        last = ""
    if failed and not code and not last:
        return "failed"
    if last and code == "exit 1":
        code = ""  # only says that it failed
    return " · ".join(filter(None, (last, code)))


def _command(values: Mapping[str, Any]) -> str:
    value = next((values[name] for name in _COMMANDS if name in values), None)
    if isinstance(value, list):
        words = [str(word) for word in value]
        if len(words) >= 3 and words[0] in _SHELLS and words[1].startswith("-"):
            return words[2]
        return " ".join(words)
    return value if isinstance(value, str) else ""


def _describe_edit(values: Mapping[str, Any]) -> ToolLine | None:
    path = _first(values, _PATHS)
    patch = next((text for text in _texts(values, _PATCHES) if _is_patch(text)), None)
    if patch is not None:
        paths = _patched(patch) or ([path] if path else [])
        return _edited(paths, *_count_patch(patch))
    changes = values.get("changes")
    if isinstance(changes, list | dict) and changes:
        named = (
            [each.get("path") for each in changes if isinstance(each, dict)] if isinstance(changes, list) else changes
        )
        paths = [each for each in named if isinstance(each, str)]
        return _edited(paths, None, None) if paths else None
    if not path:
        return None
    edits = values.get("edits")
    several = [each for each in edits if isinstance(each, Mapping)] if isinstance(edits, list) else [values]
    added = removed = 0
    found = False
    for each in several:
        before, after = _text(each, _BEFORE), _text(each, _AFTER)
        if before is None and after is None:
            continue
        found = True
        more, fewer = count_changes(before or "", after or "")
        added, removed = added + more, removed + fewer
    if found:
        return _edited([path], added, removed)
    content = _text(values, _CONTENTS)
    return None if content is None else _edited([path], _lines(content), None)


def _edited(paths: list[str], added: int | None, removed: int | None) -> ToolLine:
    shown = ", ".join(_short_path(one_line(path)) for path in paths[:3])
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ToolLine("✎", f"{shown}{more}", "", added, removed)


def count_changes(before: str, after: str) -> tuple[int, int]:
    """Return the lines added and removed, without the common lines at the start and end."""
    old, new = before.split("\n"), after.split("\n")
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return len(new), len(old)


def _is_patch(text: str) -> bool:
    return "*** Begin Patch" in text or text.startswith(("--- ", "diff ", "@@ "))


def _patched(patch: str) -> list[str]:
    found = re.findall(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$|^\+\+\+ (?:b/)?(\S+)", patch, re.MULTILINE)
    return [first or second for first, second in found]


def _count_patch(patch: str) -> tuple[int, int]:
    lines = patch.split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
    return added, removed


def _lines(text: str) -> int:
    return len(text.removesuffix("\n").split("\n")) if text else 0


def _short_path(path: str) -> str:
    return path.removeprefix(_WORKSPACE)


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((text for text in _texts(values, names) if text), "")


def _text(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next(iter(_texts(values, names)), None)


def _texts(values: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    return [value for name in names if isinstance(value := values.get(name), str)]
