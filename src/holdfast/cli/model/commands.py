"""`holdfast model`: the models that agents use. Keys come from standard input or a hidden prompt; none is shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.api.model.models import Api
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.removal import remove_named
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import YesOption
from holdfast.cli.terminal.console import ACCENT, Cell, hint, is_terminal, note, write_field, write_json, write_table

if TYPE_CHECKING:
    from holdfast.api.model.models import ModelRecord, ModelTrial
    from holdfast.client import Client

_MAX_KEY: Final = 8192
_BY_STATUS: Final = {401: Exit.NOT_AUTHORISED, 403: Exit.NOT_AUTHORISED, 404: Exit.NOT_FOUND, 0: Exit.UNREACHABLE}

NameArgument = Annotated[str, Argument(metavar="NAME", help="Name of the model.", show_default=False)]
ApiOption = Annotated[
    list[Api] | None,
    Option("--api", help="API that the model speaks. Can be given several times.", show_default=False),
]
KeyOption = Annotated[bool, Option("--key-stdin", help="Read the key from standard input.")]


def add(
    name: NameArgument,
    api: ApiOption = None,
    base_url: Annotated[
        str | None, Option("--base-url", metavar="URL", help="Base URL of the API.", show_default=False)
    ] = None,
    key_stdin: KeyOption = False,
    model: Annotated[
        str | None,
        Option("--model", metavar="ID", help="Default model, unless a run names one.", show_default=False),
    ] = None,
    context: Annotated[
        int | None, Option("--context", metavar="N", help="Tokens in its context window.", show_default=False)
    ] = None,
    max_tokens: Annotated[
        int | None, Option("--max-tokens", metavar="N", help="Most tokens in one answer.", show_default=False)
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Add a model, or change one: options that are left out keep their values.

    Built-in providers only need a key; model list shows them. The key is stored encrypted on the server and sent only
    to the model's base URL. Boxes never see it.

    \b
    holdfast model add anthropic --key-stdin < key.txt
    holdfast model add mine --api openai-chat --base-url http://127.0.0.1:8000/v1 --model qwen3
    """
    key = _read_key(key_stdin=key_stdin, wanted=base_url is None and model is None)

    async def work(client: Client) -> ModelRecord:
        return await client.models.add(
            name,
            apis=api or (),
            base_url=base_url,
            key=key,
            model=model,
            context_window=context,
            max_tokens=max_tokens,
        )

    made = ask(where, work)
    if as_json:
        write_json(made.to_json())
        return
    _print(made)
    if made.is_ready and made.model is None:
        note("careful", f"{made.name} has no default model, so each run needs --model {made.name}/MODEL")
        write_field("next", hint(f"holdfast model add {made.name} --model MODEL"))
    elif made.is_ready:
        write_field("next", hint(f"holdfast model test {made.name}"))
    else:
        write_field("next", hint(f"holdfast model add {made.name} --key-stdin < FILE"))


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List models, those that are ready first. The others are built in and need a key."""

    async def work(client: Client) -> list[ModelRecord]:
        return await client.models.list()

    found = ask(where, work)
    if as_json:
        write_json({"models": [each.to_json() for each in found]})
        return
    rows = [
        (
            Cell(each.name, "bold" if each.is_ready else "dim"),
            model_state(each.is_ready, each.model),
            each.model or Cell("—", "dim"),
            f"{each.context_window:,}",
            Cell(", ".join(each.endpoints), "dim"),
            Cell(_places(each), "dim"),
        )
        for each in found
    ]
    write_table(("name", "state", "model", "context", "apis", "url"), rows)


def try_(
    name: Annotated[str, Argument(metavar="NAME[/MODEL]", help="Model to test.", show_default=False)],
    api: Annotated[Api | None, Option("--api", help="API to use. Default: the best that the model speaks.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Ask a model a short question, from the server, over the same path that agents use."""
    short, _, id = name.partition("/")

    async def work(client: Client) -> ModelTrial:
        return await client.models.test(short, model=id or None, api=api)

    trial = ask(where, work)
    if as_json:
        write_json(trial.to_json())
    elif trial.ok:
        write_field("model", Cell(trial.model, "bold"), Cell(f"  {trial.api}", "dim"))
        write_field("answered", Cell(f"{trial.milliseconds} ms", "green"), Cell(f"  {trial.text.strip()}", ACCENT))
    if not trial.ok:
        status = f" ({trial.status})" if trial.status else ""
        raise CommandError(
            f"{trial.model} does not answer{status}: {trial.text}",
            next_step=trial.hint,
            exit=_BY_STATUS.get(trial.status, Exit.UNREACHABLE if trial.status in (502, 504) else Exit.FAILURE),
            code="model_failed",
        )


def remove(
    name: NameArgument,
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Remove a model and its key. Runs can no longer use it."""

    async def check_exists(client: Client) -> None:
        if name not in [each.name for each in await client.models.list()]:
            raise CommandError(
                f"there is no model {name!r}",
                next_step="list models with holdfast model list",
                exit=Exit.NOT_FOUND,
            )

    remove_named(
        name,
        f"model {name} and its key",
        "holdfast model remove",
        where=where,
        yes=yes,
        as_json=as_json,
        check=check_exists,
        remove=lambda client: client.models.remove(name),
    )


def _read_key(*, key_stdin: bool, wanted: bool) -> str | None:
    """Read the key from standard input, or prompt for it if it is `wanted`. Returns None if there is none."""
    if key_stdin:
        key = sys.stdin.read(_MAX_KEY).strip()
        if not key:
            raise CommandError(
                "standard input contains no key",
                next_step="holdfast model add NAME --key-stdin < FILE",
                exit=Exit.USAGE,
            )
        return key
    if wanted and sys.stdin.isatty() and is_terminal():
        import typer  # here, because it takes long

        try:
            answer: str = typer.prompt("  key          ", hide_input=True, default="", show_default=False)
        except typer.Abort:
            raise KeyboardInterrupt from None
        return answer.strip() or None
    return None


def _print(model: ModelRecord) -> None:
    write_field("model", Cell(model.name, "bold"), Cell("  built in" if model.built_in else "", "dim"))
    for api, url in model.endpoints.items():
        write_field(api.value, url)
    write_field("default", model.model or Cell("none: choose one with --model", "dim"))
    write_field("context", f"{model.context_window:,} tokens, at most {model.max_tokens:,} in an answer")
    write_field("key", "set" if model.has_key else Cell("none", "dim" if model.is_ready else "yellow"))


def model_state(is_ready: bool, default: str | None) -> Cell:
    """Returns whether a run can use the model by its name alone, or what is missing."""
    if not is_ready:
        return Cell("no key", "dim")
    return Cell("ready", "green") if default else Cell("no default", "yellow")


def _places(model: ModelRecord) -> str:
    return ", ".join(dict.fromkeys(model.endpoints.values()))
