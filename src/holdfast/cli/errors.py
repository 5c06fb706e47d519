"""Failures as users see them: what was wrong, with what value, what to do next, and the exit code for scripts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.cli.exits import Exit

if TYPE_CHECKING:
    from holdfast.api.errors import HoldfastError

T = TypeVar("T")


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


def usage_error(message: str, next_step: str | None = None) -> CommandError:
    return CommandError(message, next_step=next_step, exit=Exit.USAGE)


def read_value(read: Callable[[str], T], text: str | None) -> T | None:
    """Parse the value of an option, if it was given. A `ValueError` of the parser becomes a usage error."""
    try:
        return None if text is None else read(text)
    except ValueError as error:
        raise usage_error(str(error)) from None


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
_EXITS_BY_CODE: Final[Mapping[str, Exit]] = {
    "unreachable": Exit.UNREACHABLE,
    "refused": Exit.FAILURE,
    "file_denied": Exit.FAILURE,
    "process_lost": Exit.FAILURE,
    "file_problem": Exit.FAILURE,
    "wrong_file_kind": Exit.FAILURE,
    "box_unreachable": Exit.UNREACHABLE,
    "exec_timeout": Exit.TIMED_OUT,
}
"""Codes that decide the exit code, whatever the status."""

_NEXT_STEPS: Final[Mapping[Exit, str]] = {
    Exit.NOT_FOUND: "list threads with holdfast thread list",
    Exit.NOT_AUTHORISED: "give an API key with --api-key or HOLDFAST_API_KEY; create one with holdfast key create",
    Exit.DISK_FULL: "free some space on the server's disk, then run the command again; reading still works",
}
_BOX_NEXT_STEPS: Final[Mapping[str, str]] = {
    "box_not_found": "list boxes with holdfast box list",
    "box_gone": "create another with holdfast box create; list what can be restored with holdfast box snapshots",
    "box_stopped": "holdfast box start BOX",
    "box_unreachable": "find out why with holdfast box diagnose BOX",
    "cannot_isolate": "check what this machine allows with holdfast doctor",
    "process_not_found": "list processes with holdfast box logs BOX",
    "snapshot_not_found": "list snapshots with holdfast box snapshots",
    "volume_not_found": "list volumes with holdfast volume list",
    "volume_in_use": "delete the boxes that mount it first; list boxes with holdfast box list",
    "no_space": "free some space in the box, or give it more with --disk",
}
_BOX_ID: Final = re.compile(r"\bbox (b-[0-9a-z-]{1,64})")


def command_error(error: HoldfastError, *, when_away: str | None = None, key_from: str | None = None) -> CommandError:
    """Return the error that ends a command. `when_away` is what to do if the server cannot be reached, and `key_from`
    is the option or the variable that its credential was given with.
    """
    exit = _EXITS_BY_CODE.get(error.code) or _EXITS.get(error.status or 0, Exit.FAILURE)
    if error.code == "unreachable":
        next_step = when_away
    elif error.status == 401 and key_from is not None:  # another command would be refused alike
        leave = "leave it out" if key_from.startswith("-") else "unset it"
        next_step = f"correct {key_from}, or {leave}: commands on the machine of the server need none"
    else:
        next_step = error.hint or _box_next_step(error) or (None if _is_of_box(error) else _NEXT_STEPS.get(exit))
    return CommandError(error.message, next_step=next_step, exit=exit, code=error.code)


def _is_of_box(error: HoldfastError) -> bool:
    from holdfast.api.errors.boxes import BoxError

    return isinstance(error, BoxError)


def _box_next_step(error: HoldfastError) -> str | None:
    """What to do about an error of a box, by its code. Names the box if the message does."""
    step = _BOX_NEXT_STEPS.get(error.code)
    named = _BOX_ID.search(error.message)
    return step if step is None or named is None else step.replace("BOX", named[1])


def print_error(error: CommandError, *, as_json: bool) -> None:
    from holdfast.cli.command_name import as_called, for_target

    if as_json:
        hint = error.next_step and for_target(error.next_step)
        document = {"code": error.code, "message": error.message, "hint": hint, "exit": int(error.exit)}
        sys.stderr.write(json.dumps({"error": {k: v for k, v in document.items() if v is not None}}) + "\n")
        return
    from holdfast.cli.terminal.console import note

    note("error", error.message)
    if error.next_step:
        note("next", as_called(error.next_step))
