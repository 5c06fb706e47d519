"""`holdfast export`: a thread as JSON lines, and as one page."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli
from tests.cli.test_import import SESSION


def imported(cli: Cli, tmp_path: Path) -> str:
    (tmp_path / "session.jsonl").write_text(SESSION)
    thread: str = cli("import", str(tmp_path / "session.jsonl"), "--empty", "--json").json()["thread"]
    return thread


def test_a_thread_is_exported_as_lines_that_can_be_read_again(cli: Cli, tmp_path: Path) -> None:
    thread = imported(cli, tmp_path)
    outcome = cli("export", thread)
    assert outcome.exit == 0, outcome.err
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert [line["payload"]["type"] for line in lines][-4:] == [
        "signal.run.started", "pi.user", "pi.assistant", "signal.run.finished",
    ]  # fmt: skip
    assert set(lines[0]) == {"id", "ts", "payload"}


def test_a_thread_is_exported_as_one_page_into_a_new_file(cli: Cli, tmp_path: Path) -> None:
    thread, target = imported(cli, tmp_path), tmp_path / "thread.html"
    outcome = cli("export", thread, "--html", "-o", str(target))
    assert outcome.exit == 0, outcome.err
    page = target.read_text()
    assert "What is in here?" in page
    assert "A parser." in page
    assert page.startswith("<!doctype html>")
    outcome = cli("export", thread, "-o", str(target))
    assert outcome.exit == 6
    assert target.read_text() == page
    assert cli("export", "t-nope", "-o", str(tmp_path / "none")).exit == 3
    assert {each.name for each in tmp_path.iterdir()} == {"session.jsonl", "thread.html", "stdin"}
