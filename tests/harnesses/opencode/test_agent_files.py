"""Skills and tools, where OpenCode finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.harnesses.opencode.agent_files import AgentFiles

SKILL = {"name": "release-notes", "text": '# How to "release"\n\nBriefly.'}
TOOL = {"name": "number", "text": "export default {}\n"}


def test_files_are_written_once_found_again_and_replaced(tmp_path: Path) -> None:
    files = AgentFiles(str(tmp_path))
    assert not files.write([], [])
    assert files.write([SKILL], [TOOL])
    assert not files.write([SKILL], [TOOL])
    text = (tmp_path / "skill" / "release-notes" / "SKILL.md").read_text()
    assert text.startswith("---\nname: release-notes\ndescription: \"How to 'release'\"\n---\n\n# How to")
    assert (tmp_path / "tool" / "number.ts").read_text() == TOOL["text"]
    assert (tmp_path / "node_modules").is_dir(), "OpenCode would download its library for tools"
    again = AgentFiles(str(tmp_path))
    assert not again.write([SKILL], [TOOL])
    assert again.write([], [TOOL])
    assert not (tmp_path / "skill").exists()


def test_a_skill_keeps_the_head_that_it_has(tmp_path: Path) -> None:
    text = "---\nname: x\ndescription: of mine\n---\nBody"
    AgentFiles(str(tmp_path)).write([{"name": "x", "text": text}], [])
    assert (tmp_path / "skill" / "x" / "SKILL.md").read_text() == text


@pytest.mark.parametrize("name", ["../x", "a/b", "", "A", ".", "x.ts"])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a name that is none"):
        AgentFiles(str(tmp_path)).write([{"name": name, "text": "x"}], [])
    assert list(tmp_path.iterdir()) == []
