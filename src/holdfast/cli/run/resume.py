"""`holdfast resume`: continues a thread whose run has ended, in its box or a new one, with its agent or another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.cli.errors import read_value
from holdfast.cli.names import find_thread
from holdfast.cli.network_options import AllowOption, NetworkName, SecretOption, parse_policy
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.options import (
    BudgetOption,
    CheckpointsOption,
    ModelOption,
    RunThreadArgument,
    TimeoutOption,
    TokenBudgetOption,
    make_budget,
    split_models,
)
from holdfast.cli.session import ask
from holdfast.cli.terminal.durations import parse_duration
from holdfast.cli.terminal.sizes import parse_size

if TYPE_CHECKING:
    from holdfast.cli.exits import Exit
    from holdfast.cli.run.follow import LaunchState, StartedRun
    from holdfast.client import Client


def resume(
    thread: RunThreadArgument,
    prompt: Annotated[str | None, Argument(metavar="PROMPT", help="What to do next. Default: continue.")] = None,
    agent: Annotated[
        str | None, Option("--agent", metavar="NAME", help="Another agent, which gets the transcript.")
    ] = None,
    model: ModelOption = None,
    fresh: Annotated[bool, Option("--fresh", help="Use a new box, with the old one's files if possible.")] = False,
    provider: Annotated[
        str | None, Option("--provider", metavar="NAME", help="Move its box to this provider first, with its files.")
    ] = None,
    network: Annotated[NetworkName | None, Option(help="What the box may reach from now on.")] = None,
    allow: AllowOption = None,
    secret: SecretOption = None,
    memory: Annotated[str | None, Option(metavar="SIZE", help="Memory of the box from now on, such as 4G.")] = None,
    disk: Annotated[str | None, Option(metavar="SIZE", help="Disk space of the box from now on, such as 20G.")] = None,
    timeout: TimeoutOption = None,
    checkpoints: CheckpointsOption = None,
    budget: BudgetOption = None,
    budget_tokens: TokenBudgetOption = None,
    detach: Annotated[bool, Option("--detach", "-d", help="Leave it running.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Continue a thread after its run completed, failed or was cancelled, or its box was lost.

    The agent continues its own session. If that was lost with the box, the session is rebuilt from the thread.

    \b
    holdfast resume t-1
    holdfast resume t-1 "now write the docs" --agent codex
    holdfast resume t-1 --disk 20G
    holdfast resume t-1 --provider docker
    holdfast resume t-1 "pip install pytest, then go on" --allow default
    """
    from holdfast.cli.run.follow import begin_and_follow
    from holdfast.cli.session import ensure_server

    policy = parse_policy(network, allow, None, None, secret).to_json() if network or allow or secret else None
    memory_bytes = read_value(parse_size, memory)
    disk_bytes = read_value(parse_size, disk)
    seconds = read_value(parse_duration, timeout)
    first, fallbacks = split_models(model)
    most = make_budget(budget, budget_tokens)
    ensure_server(where)

    async def work(client: Client) -> Exit:
        async def begin(state: LaunchState) -> StartedRun:
            from holdfast.cli.run.follow import StartedRun

            info = await client.threads.get(await find_thread(client, thread))
            state.sent = True
            launched = await client.runs.resume(
                info.id,
                prompt,
                agent=agent,
                model=first,
                fresh=fresh,
                provider=provider,
                network=policy,
                memory=memory_bytes,
                disk=disk_bytes,
                timeout=seconds,
                checkpoints=checkpoints,
                fallbacks=fallbacks,
                budget=most,
            )
            return StartedRun(launched.thread, launched.run, info.next_offset)

        return await begin_and_follow(where, client, begin, detach=detach, as_json=as_json)

    return ask(where, work)
