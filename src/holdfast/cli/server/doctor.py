"""`holdfast doctor`: checks what this machine can do, and suggests what to change."""

from __future__ import annotations

from holdfast.boxes.finding import Finding, Word
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.server.machine import examine
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.console import Cell, hint, write_json, write_line

_SIGNS = {Word.OK: "✓", Word.LIMITED: "–", Word.MISSING: "✗"}
_STYLES = {Word.OK: "green", Word.LIMITED: "yellow", Word.MISSING: "red"}


def doctor(home: HomeOption = None, as_json: JsonOption = False) -> Exit:
    """Check what this machine can and cannot do. Exits with 1 if the server could not run."""
    findings = []
    for finding in examine(home_or_default(home).absolute()):
        findings.append(finding)
        if not as_json:
            _write(finding)
    broken = [finding.name for finding in findings if finding.needed and finding.word is Word.MISSING]
    if as_json:
        write_json({"ok": not broken, "findings": [_document(finding) for finding in findings]})
    elif broken:
        write_line("\n  ", Cell(f"The server cannot run here: {', '.join(broken)}.", "red"))
    else:
        write_line("\n  The server can run here. Whatever is not ok is needed only for the purpose shown.")
    return Exit.FAILURE if broken else Exit.OK


def _write(finding: Finding) -> None:
    style = _STYLES[finding.word]
    write_line(
        "  ",
        Cell(f"{_SIGNS[finding.word]} {finding.word.value:<8}", style),
        f" {finding.name:<16} {finding.detail}",
        Cell(f" · {finding.purpose}", "dim"),
    )
    if finding.next_step is not None:
        write_line(" " * 30, hint(f"next: {finding.next_step}"))


def _document(finding: Finding) -> dict[str, object]:
    return {
        "name": finding.name,
        "word": finding.word.value,
        "detail": finding.detail,
        "purpose": finding.purpose,
        "next": finding.next_step,
        "needed": finding.needed,
    }
