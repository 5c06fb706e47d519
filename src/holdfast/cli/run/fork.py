"""`holdfast fork`: a new thread with the history and the files of another, up to one of its turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.completion import complete_thread
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.options import ModelOption, split_models
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_table

if TYPE_CHECKING:
    from holdfast.api.run.checkpoints import Forked
    from holdfast.cli.run.follow import LaunchState, StartedRun
    from holdfast.client import Client

MOST_BRANCHES: Final = 32

TurnArgument = Annotated[
    str,
    Argument(
        metavar="THREAD[@TURN]",
        help="Id of the thread, and the number of a turn or the id of an entry. Default: its latest turn.",
        show_default=False,
        autocompletion=complete_thread,
    ),
]


def fork(
    thread: TurnArgument,
    prompt: Annotated[
        str | None, Option("--with", metavar="PROMPT", help="Go on there with this prompt. Default: start nothing.")
    ] = None,
    agent: Annotated[str | None, Option("--agent", metavar="NAME", help="Go on with another agent.")] = None,
    model: ModelOption = None,
    times: Annotated[int, Option("--times", metavar="N", min=1, max=MOST_BRANCHES, help="Make this many.")] = 1,
    title: Annotated[str | None, Option("--title", metavar="TEXT", help="Title of the new thread.")] = None,
    detach: Annotated[bool, Option("--detach", "-d", help="Leave it running.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Make a new thread from another: its entries up to a turn, and its files as they were at the end of that turn.

    An entry stands for the last turn that had ended when it was written. The thread itself is not changed.

    \b
    holdfast fork t-1@3
    holdfast fork t-1@3 --with "try it without a cache"
    holdfast fork t-1 --with "write the tests" --agent codex --times 4
    """
    if prompt is None and (agent is not None or model is not None):
        raise CommandError("--agent and --model need a prompt", next_step='add one: --with "…"', exit=Exit.USAGE)
    if prompt is not None:
        from holdfast.cli.session import ensure_server

        ensure_server(where)

    first, fallbacks = split_models(model)

    async def make(client: Client) -> Forked:
        name, at = split_turn(thread)
        return await client.forks.fork(
            await find_thread(client, name),
            at,
            prompt=prompt,
            agent=agent,
            model=first,
            fallbacks=fallbacks,
            title=title,
        )

    if prompt is not None and times == 1:

        async def follow(client: Client) -> Exit:
            from holdfast.cli.run.follow import StartedRun, begin_and_follow

            async def begin(state: LaunchState) -> StartedRun:
                state.sent = True
                made = await make(client)
                if not (as_json or detach):  # what follows names the thread
                    at = f"at the end of turn {made.fork_of.turn}"
                    write_field("forked", at, hint(f"  box {made.box} ready after {made.ms} ms"))
                assert made.run is not None
                return StartedRun(made.thread, made.run, made.next_offset)

            return await begin_and_follow(where, client, begin, detach=detach, as_json=as_json)

        return ask(where, follow)

    async def work(client: Client) -> list[Forked]:
        import asyncio

        return list(await asyncio.gather(*(make(client) for _ in range(times))))

    forks = ask(where, work)
    if as_json:
        write_json({"forks": [each.to_json() for each in forks]})
        return Exit.OK
    if times == 1:
        _show(forks[0])
        note("next", hint(f'holdfast resume {forks[0].thread} "…"'))
        return Exit.OK
    write_table(
        ("thread", "from", "box", "run", "ready after"),
        [(Cell(each.thread, "bold"), _source(each), each.box, each.run or "none", f"{each.ms} ms") for each in forks],
    )
    if prompt is not None:
        note("next", hint(f"holdfast attach {forks[0].thread}"))
    note("compare", hint(f"holdfast compare {forks[0].thread} {forks[1].thread}"))
    return Exit.OK


def split_turn(text: str) -> tuple[str, str | None]:
    """Split `THREAD@TURN`."""
    name, mark, at = text.partition("@")
    if not name or (mark and not at):
        raise CommandError(
            f"{text!r} names no turn of a thread", next_step="write it as THREAD@3, or THREAD alone", exit=Exit.USAGE
        )
    return name, at or None


def _show(made: Forked) -> None:
    write_field("thread", Cell(made.thread, "bold"), f"  from {_source(made)}")
    write_field("box", made.box, hint(f"  ready after {made.ms} ms"))


def _source(made: Forked) -> str:
    return f"{made.fork_of.thread}@{made.fork_of.turn}"
