"""Failures as a person sees them: what was wrong, with what value, what to do next, and the exit code for scripts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from holdfast.cli.exits import Exit

if TYPE_CHECKING:
    from holdfast.boxes.errors import BoxError
    from holdfast.client.errors import HoldfastError


class CommandError(Exception):
    """Ends a command. Printed on standard error, without a stack trace."""

    def __init__(
        self, message: str, *, next_step: str | None = None, exit: Exit = Exit.FAILURE, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.exit = exit
        self.code = code or exit.name.lower()


_EXITS: Final[Mapping[int, Exit]] = {
    400: Exit.USAGE,
    401: Exit.NOT_AUTHORISED,
    403: Exit.NOT_AUTHORISED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    410: Exit.NOT_FOUND,
    413: Exit.USAGE,
    422: Exit.USAGE,
    507: Exit.DISK_FULL,
}

_NEXT_STEPS: Final[Mapping[Exit, str]] = {
    Exit.NOT_FOUND: "holdfast thread list shows the threads there are",
    Exit.NOT_AUTHORISED: "give an API key with --api-key or HOLDFAST_API_KEY; holdfast key create makes one",
    Exit.DISK_FULL: "free some space on the server's disk, then run the command again; reading goes on meanwhile",
}


def command_error(error: HoldfastError, *, when_away: str) -> CommandError:
    """A client's error as the end of a command."""
    if error.code == "unreachable":
        return CommandError(error.message, next_step=when_away, exit=Exit.UNREACHABLE, code=error.code)
    exit = _EXITS.get(error.status or 0, Exit.FAILURE)
    return CommandError(error.message, next_step=error.hint or _NEXT_STEPS.get(exit), exit=exit, code=error.code)


_BOX_EXITS: Final[Mapping[str, Exit]] = {
    "refused": Exit.FAILURE,
    "file_denied": Exit.FAILURE,
    "process_lost": Exit.FAILURE,
    "file_problem": Exit.FAILURE,
    "wrong_file_kind": Exit.FAILURE,
    "box_unreachable": Exit.UNREACHABLE,
    "exec_timeout": Exit.TIMED_OUT,
}
"""Where the cause says more than the status."""

_BOX_ID: Final = re.compile(r"\bbox (b-[0-9a-z-]{1,64})")
_BOX_NEXT_STEPS: Final[Mapping[str, str]] = {
    "box_not_found": "holdfast box list shows the boxes there are",
    "box_gone": "holdfast box create makes another; holdfast box snapshots shows what can be restored",
    "box_stopped": "holdfast box start BOX",
    "box_unreachable": "holdfast box diagnose BOX says where the path ends",
    "cannot_isolate": "holdfast doctor says what this machine lets us do",
    "process_not_found": "holdfast box logs BOX lists the processes",
    "snapshot_not_found": "holdfast box snapshots lists them",
    "volume_not_found": "holdfast volume list shows the volumes there are",
    "volume_in_use": "holdfast box list shows the boxes; delete those that mount it first",
    "no_space": "free some space in the box, or give it more with --disk",
}


def box_error(error: BoxError) -> CommandError:
    """What went wrong with a box, as the end of a command."""
    exit = _BOX_EXITS.get(error.code) or _EXITS.get(error.status, Exit.FAILURE)
    return CommandError(error.message, next_step=error.hint or _box_next_step(error), exit=exit, code=error.code)


def _box_next_step(error: BoxError) -> str | None:
    """Of what is known by its code alone. The message names the box, where there is one."""
    step = _BOX_NEXT_STEPS.get(error.code)
    named = _BOX_ID.search(error.message)
    return step if step is None or named is None else step.replace("BOX", named[1])


def print_error(error: CommandError, *, as_json: bool) -> None:
    from holdfast.cli.command_name import as_called, for_target

    if as_json:
        hint = error.next_step and for_target(error.next_step)
        told = {"code": error.code, "message": error.message, "hint": hint, "exit": int(error.exit)}
        sys.stderr.write(json.dumps({"error": {k: v for k, v in told.items() if v is not None}}) + "\n")
        return
    from holdfast.cli.terminal.console import note

    note("error", error.message)
    if error.next_step:
        note("next", as_called(error.next_step))
