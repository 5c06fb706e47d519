"""The root of the command line: finds the command, runs it, and turns every failure into a message and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.command_name import as_called, command_name, forget_target
from holdfast.cli.commands import find, load
from holdfast.cli.errors import CommandError, print_error
from holdfast.cli.exits import Exit
from holdfast.cli.parsing.parameters import Signature, signature_of
from holdfast.cli.parsing.parser import parse

if TYPE_CHECKING:
    import typer

_COMPLETION: Final = "_HOLDFAST_COMPLETE"
"""The variable by which a shell asks for completions."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_PYDANTIC_PREFIX: Final = re.compile(r": (?:Value error|Assertion failed), ")
"""What pydantic puts before the reason why a value is invalid. It means nothing to users."""
_PYDANTIC_NUMBER: Final = re.compile(r"Input should be a valid (integer|number), .*")
_NUMBERS: Final = {"integer": "it must be a whole number", "number": "it must be a number"}
_PYDANTIC_BOUND: Final = re.compile(r"Input should be (less|greater) than (or equal to )?(?=\S)")
_BOUNDS: Final = {
    ("less", True): "it must be at most ",
    ("less", False): "it must be less than ",
    ("greater", True): "it must be at least ",
    ("greater", False): "it must be more than ",
}


def run(arguments: list[str]) -> int:
    """Run one command line, and return its exit code."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in ours
    try:
        result = _run(arguments, as_json=as_json)
    except CommandError as error:
        if error.exit is Exit.USAGE and error.next_step is None:
            error.next_step = " ".join(["holdfast", *find(arguments)[1], "--help"])
        print_error(error, as_json=as_json)
        return error.exit
    except EOFError:
        sys.stderr.write("\n")
        return Exit.INTERRUPTED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.EPIPE, *_NO_ROOM):
            raise
        _discard_output()
        if error.errno in _NO_ROOM:
            print_error(_disk_full(error), as_json=as_json)
        return Exit.FAILURE
    finally:
        forget_target()
    return result if isinstance(result, int) else Exit.OK


def _run(arguments: list[str], *, as_json: bool) -> Any:
    found, words = find(arguments)
    if isinstance(found, str) and _COMPLETION not in os.environ:
        command = load(found)
        signature = signature_of(command)
        values = parse(signature, arguments[len(words) :], os.environ)
        if values is not None:
            _run_callbacks(signature, values)
            return command(**signature.arguments(values))
    return _run_typer(arguments, as_json=as_json)


def _run_callbacks(signature: Signature, values: dict[str, Any]) -> None:
    """Pass each option that has a callback its parsed value, as Typer does."""
    for each in signature.parameters:
        if each.declaration is not None and (callback := each.declaration.settings.get("callback")):
            callback(values.get(each.name))


def _disk_full(error: OSError) -> CommandError:
    """The message for a full disk of this machine: that of a named file, otherwise the one our output goes to."""
    what = str(error.filename) if error.filename else "the output"
    return CommandError(f"cannot write {what}: the disk is full", next_step="free some space, then repeat the command")


def _discard_output() -> None:
    """Our output cannot be written any more. Python must not report that once more while it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run_typer(arguments: list[str], *, as_json: bool) -> Any:
    """Let Typer handle help, completion, mistakes, and valid command lines that our own parser does not know."""
    import typer

    from holdfast.cli.parsing.typer_app import build

    command: Any = typer.main.get_command(build(arguments))
    _rewrite_examples(command)
    try:
        return command.main(
            args=arguments, prog_name=_program_name(arguments), standalone_mode=False, complete_var=_COMPLETION
        )
    except typer.TyperException as error:
        return _explain_usage(error, arguments, as_json=as_json)
    except typer.Abort:
        return Exit.INTERRUPTED


def _program_name(arguments: list[str]) -> str:
    """The name as the user typed it; for completion the plain name, which shells look up."""
    completing = _COMPLETION in os.environ or {"--install-completion", "--show-completion"} & set(arguments[:1])
    return "holdfast" if completing else command_name()


def _rewrite_examples(command: Any) -> None:
    """Call the program in the examples of the help as the user did, so that they can be pasted."""
    command.help = command.help and as_called(command.help)
    for each in getattr(command, "commands", {}).values():
        _rewrite_examples(each)


def _explain_usage(error: typer.TyperException, arguments: list[str], *, as_json: bool) -> int:
    from holdfast.cli.other_words import ours_for

    message = _PYDANTIC_PREFIX.sub(": ", error.format_message())
    message = _PYDANTIC_NUMBER.sub(lambda found: _NUMBERS[found[1]], message)
    message = _PYDANTIC_BOUND.sub(lambda found: _BOUNDS[found[1], found[2] is not None], message)
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(message + "\n")
        return Exit.USAGE
    command = context.command_path if context is not None else command_name()
    next_step = _with_arguments(error, context, command) or f"{command} --help"
    if message.startswith("No such command") and (ours := ours_for(arguments)):
        message, next_step = f"{message.partition('.')[0]}.", " or ".join(ours)
    print_error(CommandError(message, next_step=next_step, exit=Exit.USAGE), as_json=as_json)
    return Exit.USAGE


def _with_arguments(error: typer.TyperException, context: Any, command: str) -> str | None:
    """Returns how the command is written with the arguments that are missing."""
    if context is None or type(error).__name__ != "MissingParameter":
        return None
    words = [
        str(each.metavar or each.name.upper())  # as the help and the message write it
        for each in context.command.params
        if each.param_type_name == "argument" and each.required
    ]
    return f"{' '.join([command, *words])}; or {command} --help" if words else None
