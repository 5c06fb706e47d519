"""`holdfast egress`: what the boxes of an environment may reach, unless they have rules of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.cli.network_options import NetworkOptions, describe_policy
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, write_field, write_json, write_table

if TYPE_CHECKING:
    from holdfast.api.egress import DefaultList, EnvironmentPolicy
    from holdfast.client import Client

EnvironmentArgument = Annotated[
    str, Argument(metavar="ENVIRONMENT", help="Name of the environment.", show_default=False)
]


def set_(
    environment: EnvironmentArgument,
    *,
    network: NetworkOptions,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Set what the boxes of an environment may reach. This applies to running boxes at once.

    It applies to boxes with network mode allow that have no rules of their own.

    \b
    holdfast egress set web --allow default --allow api.example.com
    holdfast box create --environment web --network allow
    """
    policy = network.policy()

    async def work(client: Client) -> EnvironmentPolicy:
        return await client.egress.set(environment, policy)

    made = ask(where, work)
    _print(made, as_json=as_json)


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List the environments that have a policy."""

    async def work(client: Client) -> list[EnvironmentPolicy]:
        return await client.egress.policies()

    found = ask(where, work)
    if as_json:
        write_json({"policies": [each.to_json() for each in found]})
    elif not found:
        write_field("no policies", hint("create one with holdfast egress set ENVIRONMENT --allow RULE"))
    else:
        write_table(
            ("environment", "network"),
            [(Cell(each.environment, "bold"), describe_policy(each.network)) for each in found],
        )


def show(
    environment: EnvironmentArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show what the boxes of an environment may reach."""

    async def work(client: Client) -> EnvironmentPolicy:
        return await client.egress.get(environment)

    _print(ask(where, work), as_json=as_json)


def remove(
    environment: EnvironmentArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Remove the policy of an environment. Its boxes use the default list at once."""

    async def work(client: Client) -> None:
        await client.egress.remove(environment)

    ask(where, work)
    if as_json:
        write_json({"environment": environment, "removed": True})
    else:
        write_field("removed", environment)


def default(*, where: Where, as_json: JsonOption = False) -> None:
    """Show the rules that the word default stands for.

    They are the package registries that pip, npm, apt and cargo use on the server's machine, and git hosts.
    """

    async def work(client: Client) -> DefaultList:
        return await client.egress.default()

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
    else:
        write_table(("rule", "of"), [(each.rule, Cell(each.source, "dim")) for each in found.rules])


def _print(found: EnvironmentPolicy, *, as_json: bool) -> None:
    if as_json:
        write_json(found.to_json())
        return
    write_field("environment", Cell(found.environment, "bold"))
    write_field("network", describe_policy(found.network))
