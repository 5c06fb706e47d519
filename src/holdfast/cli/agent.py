"""`holdfast agent`: the agents that can be run, and the models that each of them can use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.cli.model.commands import model_state
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, write_field, write_json, write_line, write_table

if TYPE_CHECKING:
    from holdfast.client import AgentRecord, Client


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List the agents, each with the models it can use now."""

    async def work(client: Client) -> list[AgentRecord]:
        return await client.agents.list()

    found = ask(where, work)
    if as_json:
        write_json({"agents": [each.to_json() for each in found]})
        return
    rows = [
        (
            Cell(each.name, "bold"),
            each.title,
            each.version or Cell("—", "dim"),
            Cell(", ".join(each.apis), "dim"),
            _models(each),
        )
        for each in found
    ]
    write_table(("name", "agent", "version", "apis", "models"), rows)


def show(
    name: Annotated[str, Argument(metavar="NAME", help="Name of the agent.", show_default=False)],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show an agent, and every model it can be used with.

    These are the models that speak one of the agent's APIs. Select another model of the same provider with NAME/MODEL.
    """

    async def work(client: Client) -> AgentRecord:
        return await client.agents.get(name)

    agent = ask(where, work)
    if as_json:
        write_json(agent.to_json())
        return
    write_field("agent", Cell(agent.name, "bold"), Cell(f"  {agent.title}", "dim"))
    write_field("version", agent.version or Cell("whichever the box has", "dim"))
    write_field("speaks", ", ".join(agent.apis))
    write_line("")
    rows = [
        (
            Cell(each.name, "bold" if each.is_ready else "dim"),
            model_state(each.is_ready, each.model),
            each.model or Cell("—", "dim"),
            Cell(each.api, "dim"),
        )
        for each in agent.models
    ]
    write_table(("model", "state", "default", "spoken to by"), rows)


def _models(agent: AgentRecord) -> Cell | str:
    """The names of the models that are ready, and how many need a key."""
    ready = [each.name for each in agent.models if each.is_ready]
    others = len(agent.models) - len(ready)
    parts = [*ready, f"{others} that need{'s' if others == 1 else ''} a key"] if others else ready
    return ", ".join(parts) if ready else Cell(", ".join(parts) or "—", "dim")
