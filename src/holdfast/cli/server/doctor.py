"""`holdfast doctor`: checks what this machine can do, and suggests what to change."""

from __future__ import annotations

from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.server.machine import examine
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.console import Cell, hint, write_json, write_line
from holdfast.providers.check_result import CheckResult, CheckStatus

_SIGNS = {CheckStatus.OK: "✓", CheckStatus.LIMITED: "–", CheckStatus.MISSING: "✗"}
_STYLES = {CheckStatus.OK: "green", CheckStatus.LIMITED: "yellow", CheckStatus.MISSING: "red"}


def doctor(home: HomeOption = None, as_json: JsonOption = False) -> Exit:
    """Check what this machine can and cannot do. Exits with 1 if the server could not run."""
    results = []
    for result in examine(home_or_default(home).absolute()):
        results.append(result)
        if not as_json:
            _write(result)
    broken = [result.name for result in results if result.needed and result.status is CheckStatus.MISSING]
    if as_json:
        write_json({"ok": not broken, "findings": [_document(result) for result in results]})
    elif broken:
        write_line("\n  ", Cell(f"The server cannot run here: {', '.join(broken)}.", "red"))
    else:
        write_line("\n  The server can run here. Whatever is not ok is needed only for the purpose shown.")
    return Exit.FAILURE if broken else Exit.OK


def _write(result: CheckResult) -> None:
    style = _STYLES[result.status]
    write_line(
        "  ",
        Cell(f"{_SIGNS[result.status]} {result.status.value:<8}", style),
        f" {result.name:<16} {result.detail}",
        Cell(f" · {result.purpose}", "dim"),
    )
    if result.next_step is not None:
        write_line(" " * 30, hint(f"next: {result.next_step}"))


def _document(result: CheckResult) -> dict[str, object]:
    return {
        "name": result.name,
        "word": result.status.value,
        "detail": result.detail,
        "purpose": result.purpose,
        "next": result.next_step,
        "needed": result.needed,
    }
