"""What the options for the network of a box mean together."""

from __future__ import annotations

import pytest

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.cli.network_options import NetworkName, describe_policy, parse_policy


@pytest.mark.parametrize(
    ("mode", "allow", "secrets", "policy", "said"),
    [
        (None, None, None, NetworkPolicy(), "none"),
        (None, ["a.com"], None, NetworkPolicy(Network.ALLOW, ("a.com",)), "allow: a.com"),
        (
            None, None, ["TOKEN"],
            NetworkPolicy(Network.ALLOW, ("secrets",), secrets=("TOKEN",)), "allow: secrets; secrets TOKEN",
        ),
        (
            None, ["default"], ["TOKEN:push"],
            NetworkPolicy(Network.ALLOW, ("default",), secrets=("TOKEN:push",)), "allow: default; secrets TOKEN:push",
        ),
        (
            "allow", None, ["TOKEN"],
            NetworkPolicy(Network.ALLOW, secrets=("TOKEN",)),
            "allow: what its environment allows, or the default list; secrets TOKEN",
        ),
        ("none", None, ["PLAIN"], NetworkPolicy(secrets=("PLAIN",)), "none; secrets PLAIN"),
    ],
)  # fmt: skip
def test_secrets_alone_open_their_hosts_and_nothing_else(
    mode: NetworkName | None, allow: list[str] | None, secrets: list[str] | None, policy: NetworkPolicy, said: str
) -> None:
    assert parse_policy(mode, allow, None, None, secrets) == policy
    assert describe_policy(policy) == said
