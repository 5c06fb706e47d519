"""`holdfast box network` and `box egress`: what a box may reach, and which of its requests were allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.calendar_time import calendar_time
from holdfast.cli.names import BoxArgument, find_box
from holdfast.cli.network_options import NetworkOptions, describe_policy
from holdfast.cli.options import JsonOption, LimitOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_table
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.api.box.records import BoxRecord
    from holdfast.api.egress import EgressDecision
    from holdfast.client import Client


def network(
    box: BoxArgument,
    *,
    rules: NetworkOptions,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show what a box may reach, or change it while it runs.

    A change replaces the whole policy, and closes connections that the new policy does not allow.

    \b
    holdfast box network b-1
    holdfast box network b-1 --allow default --allow '*.example.com:443'
    holdfast box network b-1 --mode none
    """
    policy = None if rules.is_empty else rules.policy()

    async def work(client: Client) -> BoxRecord:
        row = await find_box(client, box)
        return row if policy is None else await client.boxes.set_network(row.id, policy)

    row = ask(where, work)
    if as_json:
        write_json({"box": row.id, "network": row.spec.network.to_json()})
        return
    write_field("box", Cell(row.id, "bold"))
    write_field("network", describe_policy(row.spec.network))


def egress(
    box: BoxArgument,
    denied: Annotated[bool, Option("--denied", help="Only requests that were denied.")] = False,
    limit: LimitOption = 50,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List the network requests of a box, and whether they were allowed, newest first.

    \b
    holdfast box egress b-1 --denied
    """

    async def work(client: Client) -> tuple[str, list[EgressDecision]]:
        row = await find_box(client, box)
        found = client.egress.decisions(row.id, denied_only=denied, limit=limit)
        return row.id, [each async for each in found]

    id, decisions = ask(where, work)
    if as_json:
        write_json({"decisions": [each.to_json() for each in decisions]})
    elif not decisions:
        write_field(
            "nothing", Cell(f"box {id} has no denied requests" if denied else f"box {id} has made no requests", "dim")
        )
    else:
        write_table(("when", "", "method", "host", "sent", "received", "why"), [_line(each) for each in decisions])
        if len(decisions) == limit:
            note("more", hint(f"there may be more than these {limit}: holdfast box egress {id} --limit {limit * 10}"))


def _line(decision: EgressDecision) -> list[Cell | str]:
    when = calendar_time(decision.at)
    verdict = Cell("allowed", "green") if decision.allowed else Cell("denied", "red")
    if decision.failed:
        verdict = Cell("failed", "yellow")
    many = f" ({decision.count} times)" if decision.count > 1 else ""
    return [
        f"{when:%Y-%m-%d %H:%M:%S}",
        verdict,
        decision.method,
        f"{decision.host}:{decision.port}" if decision.host else "",
        describe_size(decision.sent),
        describe_size(decision.received),
        decision.why + many,
    ]
