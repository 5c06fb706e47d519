"""`holdfast resume`: goes on with a thread whose run is over, in its box or a fresh one, with its agent or another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.cli.box.spec import read_value
from holdfast.cli.network_options import AllowOption, NetworkName, parse_policy
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parameters import Argument, Option
from holdfast.cli.run.options import ModelOption, RunThreadArgument, TimeoutOption, read_timeout
from holdfast.cli.session import ask
from holdfast.cli.terminal.sizes import parse_size
from holdfast.cli.thread.names import find_thread

if TYPE_CHECKING:
    from holdfast.cli.exits import Exit
    from holdfast.cli.run.follow import Asking, Begun
    from holdfast.client import Client


def resume(
    thread: RunThreadArgument,
    prompt: Annotated[str | None, Argument(metavar="PROMPT", help="What to do next; else to go on.")] = None,
    agent: Annotated[
        str | None, Option("--agent", metavar="NAME", help="Another agent, which is handed the transcript.")
    ] = None,
    model: ModelOption = None,
    fresh: Annotated[
        bool, Option("--fresh", help="In a new box, with the files of the old one where they can be had.")
    ] = False,
    network: Annotated[NetworkName | None, Option(help="What the box may reach from now on; else as before.")] = None,
    allow: AllowOption = None,
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="Of the box, from now on: 512M, 4G; else as before.")
    ] = None,
    disk: Annotated[
        str | None, Option(metavar="SIZE", help="What the box may write, from now on; else as before.")
    ] = None,
    timeout: TimeoutOption = None,
    detach: Annotated[bool, Option("--detach", "-d", help="Leave it running.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Go on with a thread: after its run was completed, failed or cancelled, or its box was lost.

    The agent goes on with its own session; where that is gone with its box, the session is rebuilt from the thread.

    \b
    holdfast resume t-1
    holdfast resume t-1 "now write the docs" --agent codex
    holdfast resume t-1 --disk 20G
    holdfast resume t-1 "pip install pytest, then go on" --allow default
    """
    from holdfast.cli.discovery import ensure_server
    from holdfast.cli.run.follow import begin_and_follow

    policy = parse_policy(network, allow, None, None).to_json() if network or allow else None
    memory_bytes = None if memory is None else read_value(parse_size, memory)
    disk_bytes = None if disk is None else read_value(parse_size, disk)
    seconds = read_timeout(timeout)
    ensure_server(where)

    async def work(client: Client) -> Exit:
        async def begin(asking: Asking) -> Begun:
            from holdfast.cli.run.follow import Begun

            info = await client.threads.get(await find_thread(client, thread))
            asking.sent = True
            launched = await client.runs.resume(
                info.id,
                prompt,
                agent=agent,
                model=model,
                fresh=fresh,
                network=policy,
                memory=memory_bytes,
                disk=disk_bytes,
                timeout=seconds,
            )
            return Begun(launched.thread, launched.run, info.next_offset)

        return await begin_and_follow(where, client, begin, detach=detach, as_json=as_json)

    return ask(where, work)
