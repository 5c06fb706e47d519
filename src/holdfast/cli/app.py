"""The root of the command line: finds the command's module, runs it, and turns whatever goes wrong into a message."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from holdfast import __version__
from holdfast.cli.command_name import as_called, command_name, forget_target
from holdfast.cli.errors import CommandError, print_error
from holdfast.cli.exits import Exit

COMMANDS: Final = {
    "demo": "holdfast.cli.demo",
    "run": "holdfast.cli.run.launch",
    "runs": "holdfast.cli.run.list",
    "resume": "holdfast.cli.run.resume",
    "attach": "holdfast.cli.run.attach",
    "steer": "holdfast.cli.run.steer",
    "cancel": "holdfast.cli.run.cancel",
    "diff": "holdfast.cli.run.diff",
    "up": "holdfast.cli.server.up",
    "down": "holdfast.cli.server.down",
    "thread": "holdfast.cli.thread.commands",
    "box": "holdfast.cli.box.commands",
    "interpreter": "holdfast.cli.interpreter.commands",
    "volume": "holdfast.cli.volume",
    "image": "holdfast.cli.image.commands",
    "egress": "holdfast.cli.egress",
    "agent": "holdfast.cli.agent",
    "model": "holdfast.cli.model",
    "key": "holdfast.cli.key",
    "backup": "holdfast.cli.server.backup",
    "check": "holdfast.cli.server.check",
    "compact": "holdfast.cli.server.compact",
    "doctor": "holdfast.cli.server.doctor",
    "purge": "holdfast.cli.server.purge",
}
"""In the order of the help. Each is in a module with a function `register(app, wanted)`.

`wanted` is the word after the command's name: a group may register that command only.
"""

_COMPLETION: Final = "_HOLDFAST_COMPLETE"
"""By this a shell asks for completions."""
_THEIRS: Final = re.compile(r": (?:Value error|Assertion failed), ")
"""What is put before the reason why a value is refused, and says nothing to people."""
_ABOUT: Final = "Coding agents and Python interpreters in sandboxes, on durable threads."


def build(arguments: list[str]) -> typer.Typer:
    """The application, with all commands; or with one only, where the arguments name it."""
    app = typer.Typer(
        name="holdfast",
        help=_ABOUT,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help reads as well in a pipe, and costs no import of rich
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    named = arguments[0] if arguments and arguments[0] in COMMANDS else None
    for name, module in COMMANDS.items():
        if named in (None, name):
            import_module(module).register(app, arguments[1] if named and arguments[1:] else None)
    return app


def run(arguments: list[str]) -> int:
    """Run one command line, and return its exit code."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in ours
    command: Any = None
    try:
        command = typer.main.get_command(build(arguments))
        _name_as_called(command)
        result: Any = command.main(
            args=arguments, prog_name=_program_name(arguments), standalone_mode=False, complete_var=_COMPLETION
        )
    except CommandError as error:
        if error.exit is Exit.USAGE and error.next_step is None:
            error.next_step = " ".join(["holdfast", *_words_of(command, arguments), "--help"])
        print_error(error, as_json=as_json)
        return error.exit
    except typer.TyperException as error:
        return _explain_usage(error, as_json=as_json)
    except typer.Abort:
        return Exit.INTERRUPTED
    finally:
        forget_target()
    return result if isinstance(result, int) else Exit.OK


def _words_of(command: Any, arguments: list[str]) -> list[str]:
    """The words that name the command: `box create`."""
    words: list[str] = []
    for word in arguments:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        words.append(word)
    return words


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


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"holdfast {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass
