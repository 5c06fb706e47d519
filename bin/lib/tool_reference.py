"""Writes the reference of the tools of sessions into docs/session-tools.md. Run by `bin/generate`, checked by
tests/docs/test_tool_reference.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from holdfast.api.tools.catalogue import ALL
from holdfast.api.tools.operation import Operation, ToolGroup

PAGE: Final = Path(__file__).parents[2] / "docs" / "session-tools.md"
BEGIN: Final = "<!-- The rest is written by bin/generate. -->\n"


def reference() -> str:
    parts = []
    for group in ToolGroup:
        found = [each for each in ALL if each.group is group]
        if found:
            parts.append(f"## {group.value}\n\n" + "\n".join(map(_section, found)))
    return "\n".join(parts)


def _section(operation: Operation) -> str:
    lines = [
        f"### {operation.name}",
        "",
        f"`{operation.route}`" if operation.route else "For people only.",
        "",
        operation.description,
        "",
    ]
    if operation.fields:
        lines += ["| field | | |", "|---|---|---|"]
        for each in operation.fields:
            need = ", required" if each.required else ""
            lines.append(f"| `{each.name}` | {_kind(each.schema)}{need} | {each.description} |")
        lines.append("")
    if operation.result:
        lines += [f"Returns `{operation.result}`.", ""]
    return "\n".join(lines)


def _kind(schema: Any) -> str:
    match schema["type"]:
        case "string" if "enum" in schema:
            return " or ".join(f"`{word}`" for word in schema["enum"])
        case "string":
            return f"text up to {schema['maxLength']:,}"
        case "integer":
            return f"{schema['minimum']} to {schema['maximum']}"
        case "array":
            return f"up to {schema['maxItems']} of: {_kind(schema['items'])}"
    return str(schema["type"])


def page() -> str:
    written, mark, _ = PAGE.read_text().partition(BEGIN)
    if not mark:
        raise SystemExit(f"{PAGE} has no line {BEGIN!r}")
    return f"{written}{mark}\n{reference()}"


if __name__ == "__main__":
    text = page()
    if not PAGE.exists() or PAGE.read_text() != text:
        PAGE.write_text(text)
        sys.stdout.write(f"  wrote        {PAGE.relative_to(PAGE.parents[1])}\n")
