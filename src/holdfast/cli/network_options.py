"""Options for what a box may reach, the same for one box and for all boxes of an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.cli.completion import complete_secret
from holdfast.cli.errors import read_value, usage_error
from holdfast.cli.parsing.parameters import Option, OptionGroup
from holdfast.cli.terminal.sizes import describe_size, parse_size

if TYPE_CHECKING:
    from holdfast.api.box.network import NetworkPolicy

NetworkName = Literal["none", "allow", "open"]

AllowOption = Annotated[
    list[str] | None,
    Option(
        "--allow",
        metavar="RULE",
        help="Allow example.com, *.example.com:443, 'GET example.com', or default. Implies mode allow.",
    ),
]
BandwidthOption = Annotated[
    str | None, Option("--bandwidth", metavar="SIZE", help="Most bytes per second to and from the network, such as 1M.")
]
ConnectionsOption = Annotated[
    int | None, Option("--connections", metavar="COUNT", help="Most network connections at once.")
]


SecretOption = Annotated[
    list[str] | None,
    Option(
        "--secret",
        metavar="NAME",
        help="Let it use a secret at its hosts: NAME, or NAME:push to let git push with it.",
        autocompletion=complete_secret,
    ),
]


@dataclass(frozen=True)
class NetworkOptions(OptionGroup):
    """A whole network policy, for commands that set one."""

    mode: Annotated[NetworkName | None, Option("--mode", help="What boxes may reach.")] = None
    allow: AllowOption = None
    bandwidth: BandwidthOption = None
    connections: ConnectionsOption = None
    secret: SecretOption = None

    @property
    def is_empty(self) -> bool:
        return self == NetworkOptions()

    def policy(self) -> NetworkPolicy:
        return parse_policy(self.mode, self.allow, self.bandwidth, self.connections, self.secret)


def parse_policy(
    mode: NetworkName | None,
    allow: list[str] | None,
    bandwidth: str | None,
    connections: int | None,
    secrets: list[str] | None = None,
) -> NetworkPolicy:
    """Without a mode, rules and secrets imply mode allow; no options at all mean no network.

    With secrets alone, only the hosts that they are bound to are allowed.
    """
    from holdfast.api.box.network import SECRET_HOSTS, Network, NetworkPolicy
    from holdfast.api.errors.boxes import InvalidSpec

    if secrets and mode is None and not allow:
        allow = [SECRET_HOSTS]
    policy = NetworkPolicy(
        Network(mode or ("allow" if allow or secrets else "none")),
        tuple(allow or []),
        read_value(parse_size, bandwidth),
        connections,
        tuple(secrets or []),
    )
    try:
        policy.check()
    except InvalidSpec as error:
        raise usage_error(error.message, error.hint) from None
    return policy


def describe_policy(policy: NetworkPolicy) -> str:
    """Describe a policy in one line."""
    text = str(policy.mode)
    if policy.mode == "allow":
        text += f": {', '.join(policy.allow) or 'what its environment allows, or the default list'}"
    if policy.bandwidth is not None:
        text += f"; {describe_size(policy.bandwidth)} per second"
    if policy.connections is not None:
        text += f"; {policy.connections} connections at once"
    if policy.secrets:
        text += f"; secrets {', '.join(policy.secrets)}"
    return text
