"""The root of the command line: finds the command, runs it, and turns whatever goes wrong into a message."""

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
from holdfast.cli.parameters import Signature, signature_of
from holdfast.cli.parser import parse

if TYPE_CHECKING:
    import typer

_COMPLETION: Final = "_HOLDFAST_COMPLETE"
"""By this a shell asks for completions."""
_THEIRS: Final = re.compile(r": (?:Value error|Assertion failed), ")
"""What is put before the reason why a value is refused, and says nothing to people."""


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
        if error.errno != errno.EPIPE:
            raise
        _stop_writing()
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
            _call_back(signature, values)
            return command(**signature.arguments(values))
    return _run_typer(arguments, as_json=as_json)


def _call_back(signature: Signature, values: dict[str, Any]) -> None:
    """Tell the options that want to know what became of them."""
    for each in signature.parameters:
        if each.declaration is not None and (callback := each.declaration.settings.get("callback")):
            callback(values.get(each.name))


def _stop_writing() -> None:
    """Whoever reads our output has gone: Python must not complain of that while it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run_typer(arguments: list[str], *, as_json: bool) -> Any:
    """Help, completion and mistakes; and correct lines that are written in an unusual way."""
    import typer

    from holdfast.cli.typer_app import build

    command: Any = typer.main.get_command(build(arguments))
    _name_as_called(command)
    try:
        return command.main(
            args=arguments, prog_name=_program_name(arguments), standalone_mode=False, complete_var=_COMPLETION
        )
    except typer.TyperException as error:
        return _explain_usage(error, as_json=as_json)
    except typer.Abort:
        return Exit.INTERRUPTED


def _program_name(arguments: list[str]) -> str:
    """As it was called; for a shell's completion its plain name, by which shells know it wherever it is."""
    completing = _COMPLETION in os.environ or {"--install-completion", "--show-completion"} & set(arguments[:1])
    return "holdfast" if completing else command_name()


def _name_as_called(command: Any) -> None:
    """The examples of the help can be pasted too."""
    command.help = command.help and as_called(command.help)
    for each in getattr(command, "commands", {}).values():
        _name_as_called(each)


def _explain_usage(error: typer.TyperException, *, as_json: bool) -> int:
    message = _THEIRS.sub(": ", error.format_message())
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(message + "\n")
        return Exit.USAGE
    command = context.command_path if context is not None else command_name()
    print_error(CommandError(message, next_step=f"{command} --help", exit=Exit.USAGE), as_json=as_json)
    return Exit.USAGE
