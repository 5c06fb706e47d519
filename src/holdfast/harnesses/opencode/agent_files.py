"""Skills and tools in the folder where OpenCode looks for them, beside its configuration. Used in boxes."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KINDS = ("skill", "tool")
_LONGEST = 1 << 20
_NAME = re.compile("[a-z0-9]+([-_][a-z0-9]+)*")


class AgentFiles:
    """Owns the folders `skill` and `tool` below `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._written = _read(self._folder)
        """By path. An earlier runner may have written some."""

    def write(self, skills: list[dict[str, Any]], tools: list[dict[str, Any]]) -> bool:
        """Write these files in place of earlier ones. Returns whether something changed. Raises `ValueError`."""
        wanted = {f"skill/{_name(each)}/SKILL.md": _with_head(each) for each in skills}
        wanted.update({f"tool/{_name(each)}.ts": str(each.get("text", "")) for each in tools})
        if wanted == self._written:
            return False
        for kind in _KINDS:
            shutil.rmtree(self._folder / kind, ignore_errors=True)
        if tools:
            self._seem_installed()
        for name, text in wanted.items():
            path = self._folder / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self._written = wanted
        return True

    def _seem_installed(self) -> None:
        """Make OpenCode believe that its library for tools is there.

        It would download it before it loads tools, which takes minutes to fail in a box without a network. Tools are
        plain objects, and need none.
        """
        (self._folder / "node_modules").mkdir(mode=0o700, parents=True, exist_ok=True)
        locked = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
        (self._folder / "package-lock.json").write_text(json.dumps(locked))


def _read(folder: Path) -> dict[str, str]:
    found = {}
    for path in (each for kind in _KINDS for each in (folder / kind).rglob("*") if each.is_file()):
        found[str(path.relative_to(folder))] = ""  # if it cannot be read, it is not ours, and is replaced
        with contextlib.suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as file:
            found[str(path.relative_to(folder))] = file.read(_LONGEST)
    return found


def _name(file: dict[str, Any]) -> str:
    name = str(file.get("name", ""))
    if _NAME.fullmatch(name) is None:
        raise ValueError("a skill or a tool has a name that is none")
    return name


def _with_head(skill: dict[str, Any]) -> str:
    """Returns the text of a skill with the head that OpenCode requires: its name and what it is for."""
    text = str(skill.get("text", ""))
    if text.startswith("---"):
        return text
    first = next((line.strip("# ").strip() for line in text.splitlines() if line.strip("# ").strip()), _name(skill))
    described = first[:200].replace('"', "'").replace("\\", "/")
    return f'---\nname: {_name(skill)}\ndescription: "{described}"\n---\n\n{text}'
