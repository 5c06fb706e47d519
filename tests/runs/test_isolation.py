"""What a run says of the isolation of its box: the network, and above all secrets whose values are in it."""

from __future__ import annotations

import pytest

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.runs.launch.box import describe_isolation


@pytest.mark.parametrize(
    ("policy", "exposed", "said"),
    [
        (NetworkPolicy(), (), "sandbox, no network"),
        (NetworkPolicy(Network.ALLOW), (), "sandbox, network allow"),
        (
            NetworkPolicy(Network.ALLOW, secrets=("A", "B:push")),
            (),
            "sandbox, network allow, secrets outside of it: A, B:push",
        ),
        (
            NetworkPolicy(Network.ALLOW, secrets=("A", "B:push")),
            ("B",),
            "sandbox, network allow, secrets outside of it: A, SECRETS IN THE BOX: B",
        ),
        (NetworkPolicy(secrets=("B",)), ("B",), "sandbox, no network, SECRETS IN THE BOX: B"),
    ],
)
def test_a_secret_in_a_box_is_said_loudly(policy: NetworkPolicy, exposed: tuple[str, ...], said: str) -> None:
    assert describe_isolation("sandbox", policy, exposed) == said
