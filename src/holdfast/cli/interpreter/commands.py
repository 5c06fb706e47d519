"""`holdfast interpreter`: runs code in a persistent Python in a box; lists, shows, deletes and tests interpreters."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.box.options import BoxOptions
from holdfast.cli.box.port import (
    ForwardOption,
    LocalPortArgument,
    PortArgument,
    check_local_port,
    forward_port,
    show_preview,
)
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import only
from holdfast.cli.options import JsonOption, QuietOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.options import ModelOption
from holdfast.cli.session import ask, home_or_default, server_of, skip_httpx_cli
from holdfast.cli.terminal.confirmation import YesOption, confirm_end
from holdfast.cli.terminal.console import Cell, hint, note, printable, write_field, write_json, write_table
from holdfast.cli.terminal.durations import describe_duration

if TYPE_CHECKING:
    from holdfast.api.box.records import Preview
    from holdfast.boxes import Box
    from holdfast.client import Client, InterpreterDetail, InterpreterInfo, RemoteExecution
    from holdfast.interpreter.host import Host
    from holdfast.interpreter.smoke_report import Phase, Report

InterpreterArgument = Annotated[
    str, Argument(metavar="ID", help="Id of the interpreter, or the end of it.", show_default=False)
]
TemplateOption = Annotated[
    str | None, Option("--template", metavar="NAME", help="Template of its box. Default: the provider's.")
]
_LONGEST: Final = 8_000_000


# --- running code ---


def run(
    file: Annotated[
        str | None,
        Argument(metavar="FILE", help="Python file to run. Without it, or with -, reads standard input."),
    ] = None,
    code: Annotated[
        str | None, Option("--code", "-c", metavar="CODE", help="Python code to run instead of FILE.")
    ] = None,
    id: Annotated[str | None, Option("--id", metavar="ID", help="Use an existing interpreter, with its state.")] = None,
    keep: Annotated[
        bool, Option("--keep", "-k", help="Keep the interpreter, and print its id on standard error.")
    ] = False,
    template: TemplateOption = None,
    model: ModelOption = None,
    repo: Annotated[str | None, Option("--repo", metavar="URL", help="Repository to clone into the workspace.")] = None,
    ref: Annotated[str | None, Option("--ref", metavar="REF", help="Branch, tag or commit of the repository.")] = None,
    volume: Annotated[
        str | None, Option("--volume", metavar="NAME", help="Volume to mount at /home/box/memory.")
    ] = None,
    timeout: Annotated[
        float | None, Option("--timeout", metavar="SECONDS", help="Time limit of the code. Default: 900.")
    ] = None,
    *,
    box: BoxOptions,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Run Python in a box, and print its output as it comes. Exits with 1 if the code raises.

    Without --id, a new interpreter runs the code and is then deleted, unless --keep is given. --json prints everything
    as one document. Ctrl-C interrupts the code.

    \b
    holdfast interpreter run -c 'import sys; sys.version'
    holdfast interpreter run analysis.py --template data --keep
    """
    from holdfast.cli.session import ensure_server

    if file is not None and code is not None:
        raise CommandError("both FILE and --code are given", next_step="give only one of them", exit=Exit.USAGE)
    text = _read_code(file or "-") if code is None else _bounded("the code", code)
    settings: dict[str, Any] = {"template": template, "model": model, "box": box.to_json() or None}
    settings |= {"repo_url": repo, "ref": ref, "volume": volume}
    if id is not None and any(value is not None for value in settings.values()):
        raise CommandError(
            "an existing interpreter already has its box, so options for a new one have no effect",
            next_step="leave out --id to create another, or leave out the other options",
            exit=Exit.USAGE,
        )
    ensure_server(where)
    if template is not None and _is_local(where):
        from holdfast.cli.interpreter.template import ensure_template

        ensure_template(template, box.provider or "local", where)

    async def work(client: Client) -> RemoteExecution:
        used = await _find(client, id) if id is not None else (await client.interpreters.create(**settings)).id
        try:
            return await _execute(client, used, text, timeout, quiet=as_json)
        finally:
            if id is None and keep:
                note("interpreter", used, hint(f"  continue with holdfast interpreter run --id {used}"))
            elif id is None:
                await client.interpreters.delete(used)

    done = ask(where, work)
    if as_json:
        write_json(done.to_json())
    else:
        _show(done)
    return Exit.OK if done.ok else Exit.FAILURE


def _read_code(file: str) -> str:
    try:
        code = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CommandError(
            f"cannot read {file}: {reason}",
            next_step="give a Python file, - for standard input, or the code itself with --code",
            exit=Exit.USAGE,
        ) from None
    return _bounded(file, code)


def _bounded(what: str, code: str) -> str:
    if len(code) > _LONGEST:
        raise CommandError(f"{what} has {len(code)} characters, more than {_LONGEST}", exit=Exit.USAGE)
    return code


async def _execute(client: Client, id: str, code: str, timeout: float | None, *, quiet: bool) -> RemoteExecution:
    def write(stream: str, text: str) -> None:
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.write(printable(text) if target.isatty() else text)
        target.flush()

    try:
        return await client.interpreters.execute(id, code, timeout=timeout, on_output=None if quiet else write)
    except asyncio.CancelledError:  # Ctrl-C: otherwise the code would keep running
        await client.interpreters.interrupt(id)
        raise


def _show(done: RemoteExecution) -> None:
    """Print the result, after the output."""
    if done.submitted is not None:
        write_json(done.submitted)
    elif done.value_text is not None:
        sys.stdout.write(printable(done.value_text) + "\n")
    for artifact in done.artifacts:
        note("artifact", f"{artifact.name}  {artifact.path}", Cell(f"  {artifact.media_type}", "dim"))
    if done.error is not None:
        text = done.error.traceback or f"{done.error.kind}: {done.error.message}"
        sys.stdout.flush()
        sys.stderr.write(printable(text).rstrip("\n") + "\n")


# --- listing and deleting ---


def list_(
    every: Annotated[bool, Option("--all", "-a", help="Include interpreters without a box.")] = False,
    deleted: Annotated[bool, Option("--deleted", help="Only deleted interpreters.")] = False,
    quiet: QuietOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List interpreters, including those of scripts and notebooks, most recently active first."""

    async def work(client: Client) -> list[InterpreterInfo]:
        found = [each async for each in client.interpreters.list(deleted=deleted)]
        return [each for each in found if every or deleted or each.box is not None or each.is_live]

    found = ask(where, work)
    if as_json:
        write_json({"interpreters": [each.to_json() for each in found]})
    elif quiet:
        for each in found:
            sys.stdout.write(f"{each.id}\n")
    elif not found:
        note(
            "none",
            "there are no interpreters",
            hint("  keep one with holdfast interpreter run FILE --keep"),
        )
    else:
        now = time.time()
        rows = [
            (
                Cell(each.id, "bold"),
                _state(each),
                f"{describe_duration(now - each.last_activity_at / 1000)} ago",
                each.title or "",
            )
            for each in found
        ]
        write_table(("id", "state", "active", "title"), rows)


def _state(interpreter: InterpreterInfo) -> Cell:
    if interpreter.is_live:
        return Cell("live", "green")
    return Cell("at rest" if interpreter.box is not None else "ended", "dim")


def show(
    id: InterpreterArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show an interpreter: its box, its executions and its use of tokens."""

    async def work(client: Client) -> InterpreterDetail:
        return await client.interpreters.get(await _find(client, id))

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return
    write_field("interpreter", Cell(found.id, "bold"), Cell(f"  {found.title or ''}", "dim"))
    states = {"live": "live in the server", "at rest": "at rest: opened again when it is used"}
    write_field("state", states.get(_state(found).text, "ended: it no longer has a box"))
    write_field("box", found.box or "none", Cell(f"  Python {found.python}" if found.python else "", "dim"))
    if found.creator is not None:
        write_field("creator", found.creator.user, Cell(f"  tenant {found.creator.tenant}", "dim"))
    if found.transition is not None:
        write_field("workspace", found.transition.kind, Cell(f"  {found.transition.reason}", "dim"))
    write_field("executions", str(found.executions), Cell(f"  {found.calls} calls to the host", "dim"))
    tokens = f"{found.input_tokens} input, {found.output_tokens} output"
    write_field("tokens", tokens, Cell(f"  ${found.cost:.4f}" if found.cost else "", "dim"))
    write_field("thread", found.thread, hint(f"  holdfast thread show {found.thread}"))


def port(
    id: InterpreterArgument,
    port: PortArgument,
    local: LocalPortArgument = None,
    forward: ForwardOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Print the URL of a port that code of an interpreter listens on, or forward the port to this machine.

    \b
    holdfast interpreter port i-1 8000
    holdfast interpreter port i-1 8000 --forward
    """
    command = f"holdfast interpreter port {id} {port}"
    check_local_port(local, command, forward=forward)
    if forward:
        return forward_port(where, lambda client: _open_box(client, id), port, local, as_json=as_json)

    async def work(client: Client) -> Preview:
        return await client.interpreters.preview(await _find(client, id), port)

    show_preview(ask(where, work), command, as_json=as_json)
    return Exit.OK


async def _open_box(client: Client, name: str) -> Box:
    found = await client.interpreters.get(await _find(client, name))
    if found.box is None:
        raise CommandError(
            f"interpreter {found.id} has no box now", next_step=f"holdfast interpreter run --id {found.id} creates one"
        )
    return await client.boxes.open(found.box)


def delete(
    ids: Annotated[list[str], Argument(metavar="ID...", help="Ids of interpreters, or the ends of ids.")],
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Delete interpreters with their boxes and state. Threads and volumes stay."""
    what = f"interpreter{'' if len(ids) == 1 else 's'} {', '.join(ids)} with all state in memory"
    confirm_end("delete", what, f"holdfast interpreter delete {' '.join(ids)}", yes=yes)

    async def work(client: Client) -> list[str]:
        found = [await _find(client, each) for each in ids]
        for each in found:
            await client.interpreters.delete(each)
        return found

    removed = ask(where, work)
    if as_json:
        write_json({"deleted": removed})
    else:
        for each in removed:
            write_field("deleted", each)


async def _find(client: Client, name: str) -> str:
    """The full id of an interpreter. `name` may be the beginning or end of it."""
    from holdfast.cli.names import matching
    from holdfast.client import NotFound

    try:
        return (await client.interpreters.get(name)).id
    except NotFound:
        ids = matching([each.id async for each in client.interpreters.list()], name)
        if not ids:
            raise
        return only(name, ids, "interpreters")


# --- smoke test ---


def smoke(
    repo: Annotated[
        str | None,
        Option("--repo", metavar="URL|DIR", help="Repository to clone: a URL, or a folder on this machine."),
    ] = None,
    ref: Annotated[str | None, Option("--ref", metavar="REF", help="Branch, tag or commit of the repository.")] = None,
    model: Annotated[
        str | None, Option("--model", metavar="NAME[/MODEL]", help="Also ask this model a question.")
    ] = None,
    timeout: Annotated[float, Option("--timeout", metavar="SECONDS", help="Time limit of the whole test.")] = 300.0,
    *,
    box: BoxOptions,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Test interpreters end to end: a box, a clone, a kernel, two executions that share state, clean-up.

    Prints the time of each phase. A failure has a category that says who can fix it. If the repository is at a URL, the
    box may reach only that, unless --network or --allow are given.

    \b
    holdfast interpreter smoke --repo https://github.com/pallets/click --ref main
    holdfast interpreter smoke --repo . --json
    """
    skip_httpx_cli()
    from holdfast.cli.session import ensure_server

    ensure_server(where)
    report = asyncio.run(_smoke(where, box.to_json(), repo, ref, model, timeout))
    if as_json:
        write_json(report.to_json())
    else:
        for phase in report.phases:
            _show_phase(phase)
    return Exit.OK if report.ok else Exit.FAILURE


async def _smoke(
    where: Where, box: dict[str, Any], repo: str | None, ref: str | None, model: str | None, timeout: float
) -> Report:
    from holdfast.api.box.spec import BoxSpec, Lifetime
    from holdfast.interpreter import smoke_test as smoking

    async def open_host() -> Host:
        return await _host(where)

    spec = {**box, "lifetime": Lifetime.EPHEMERAL.value, "idleSeconds": 900}
    report = await smoking.smoke(open_host, repo=repo, ref=ref, spec=BoxSpec.from_json(spec), timeout=timeout)
    if model is None or not report.ok:
        return report
    host = await _host(where)
    try:
        of_model = await smoking.smoke_model(host, model)
    finally:
        await host.close()
    return replace(report, phases=(*report.phases, *of_model.phases))


async def _host(where: Where) -> Host:
    from holdfast.interpreter.client_host import ClientHost

    if _is_local(where):
        return await ClientHost.of_home(home_or_default(where.home))
    found = server_of(where)
    return ClientHost.of_url(found.url, api_key=found.api_key, retry_seconds=0.0)


def _is_local(where: Where) -> bool:
    """Returns whether the server belongs to a home on this machine."""
    return where.server is None and (where.home is not None or not os.environ.get("HOLDFAST_URL"))


def _show_phase(phase: Phase) -> None:
    mark = Cell("✓ ", "green") if phase.ok else Cell("✗ ", "red")
    write_field(phase.name, mark, f"{phase.seconds:7.3f} s  ", Cell(phase.detail, "dim"))
    if phase.problem is not None:
        note("error", f"{phase.problem.category}: {phase.problem.message}")
        if phase.problem.hint:
            note("next", hint(phase.problem.hint))
