"""The command line as a Typer application, for help, usage errors, completion, and lines that `parser` does not read.

Importing this imports Typer and pydantic, which usual commands do without.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from holdfast import __version__
from holdfast.cli.commands import COMMANDS, Group, load
from holdfast.cli.parsing.parameters import REQUIRED, Option, OptionsUsed, OtherCommand, Parameter, signature_of
from holdfast.cli.parsing.parser import arrange

_ABOUT: Final = "Coding agents and Python interpreters in sandboxes, on durable threads."
_CONTEXT: Final = "typer_context"


def build(words: list[str]) -> typer.Typer:
    """Build the application with all commands, or with only the command that the words name."""
    app = typer.Typer(
        name="holdfast",
        help=_ABOUT,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help is readable in a pipe, and needs no import of rich
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    _add(app, COMMANDS, words)
    return app


def _add(app: typer.Typer, commands: Mapping[str, Group | str], words: list[str]) -> None:
    named = words[0] if words and words[0] in commands else None
    for name, found in commands.items():
        if named not in (None, name):
            continue
        if isinstance(found, Group):
            group = typer.Typer(name=name, help=found.help, no_args_is_help=True)
            _add(group, found.commands, words[1:] if named else [])
            app.add_typer(group)
        else:
            command = load(found)
            app.command(name, cls=class_of(command))(for_typer(command, command))


def class_of(command: Callable[..., Any]) -> type[TyperCommand] | None:
    """The class that parses the command line of `command`, or None for the usual one."""
    ends_in_command = any(isinstance(each.declaration, OtherCommand) for each in signature_of(command).parameters)
    return _CommandOfBox if ends_in_command else None


def for_typer(command: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `call`, with the parameters of `command` declared for Typer, groups expanded."""
    signature = signature_of(command)

    @wraps(command)
    def called(**values: Any) -> Any:
        context = values.pop(_CONTEXT, None)
        if context is not None:
            used = OptionsUsed(each.opts[0] for each in context.command.params if _is_used(context, each.name or ""))
            values |= {each.name: used for each in signature.parameters if each.type is OptionsUsed}
        return call(**signature.arguments(values))

    declared = [_typer_parameter(each) for each in signature.parameters]
    called.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in declared}
    return called


def _typer_parameter(parameter: Parameter) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if parameter.declaration is None:
        return inspect.Parameter(_CONTEXT, kind, annotation=typer.Context)
    declare: Any = typer.Option if isinstance(parameter.declaration, Option) else typer.Argument
    return inspect.Parameter(
        parameter.name,
        kind,
        default=inspect.Parameter.empty if parameter.default is REQUIRED else parameter.default,
        annotation=Annotated[parameter.type, declare(*parameter.declaration.names, **parameter.declaration.settings)],
    )


def _is_used(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


class _CommandOfBox(TyperCommand):
    """A command with the form `[OPTIONS] BOX [--] COMMAND...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {
            name
            for parameter in self.params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for name in parameter.opts
        }
        return super().parse_args(ctx, arrange(args, with_value))


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
