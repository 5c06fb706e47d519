"""What a box may reach, as command lines say it; the same for one box and for all of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.cli.box.spec import read_value, wrong
from holdfast.cli.parameters import Option
from holdfast.cli.terminal.sizes import describe_size, parse_size

if TYPE_CHECKING:
    from holdfast.api.box.network import NetworkPolicy

NetworkName = Literal["none", "allow", "open"]

AllowOption = Annotated[
    list[str] | None,
    Option(
        "--allow",
        metavar="RULE",
        help="What it may reach: example.com, *.example.com:443, 'GET example.com', or default. Means mode allow.",
    ),
]
BandwidthOption = Annotated[
    str | None, Option("--bandwidth", metavar="SIZE", help="Bytes per second to and from the network: 1M.")
]
ConnectionsOption = Annotated[
    int | None, Option("--connections", metavar="COUNT", help="Connections to the network at once.")
]


def parse_policy(
    mode: NetworkName | None, allow: list[str] | None, bandwidth: str | None, connections: int | None
) -> NetworkPolicy:
    """A list of rules means mode allow; nothing at all means no network."""
    from holdfast.api.box.network import Network, NetworkPolicy
    from holdfast.api.errors.boxes import InvalidSpec

    policy = NetworkPolicy(
        Network(mode or ("allow" if allow else "none")),
        tuple(allow or []),
        None if bandwidth is None else read_value(parse_size, bandwidth),
        connections,
    )
    try:
        policy.check()
    except InvalidSpec as error:
        raise wrong(error.message, error.hint) from None
    return policy


def describe_policy(policy: NetworkPolicy) -> str:
    """In one line."""
    text = str(policy.mode)
    if policy.mode == "allow":
        text += f": {', '.join(policy.allow) or 'what its environment allows, else the default list'}"
    if policy.bandwidth is not None:
        text += f"; {describe_size(policy.bandwidth)} per second"
    if policy.connections is not None:
        text += f"; {policy.connections} connections at once"
    return text
