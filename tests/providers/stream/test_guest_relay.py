"""What a box with a relay may reach by itself, in our words and in those of each cloud."""

from __future__ import annotations

import pytest

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import CannotIsolate, Unsupported
from holdfast.api.guest_url import GuestUrl
from holdfast.providers.daytona import network as daytona
from holdfast.providers.modal import network as modal
from holdfast.providers.sprites import network as sprites
from holdfast.providers.stream.guest_relay import own_environment, own_policy, read_relay, without_proxy

RELAY = GuestUrl.parse("https://relay.example.com")
NONE, OPEN = NetworkPolicy(), NetworkPolicy(Network.OPEN)
ONE = NetworkPolicy(Network.ALLOW, ("a.example.com",))


@pytest.mark.parametrize(
    ("policy", "direct", "allowed"),
    [
        (NONE, False, ("relay.example.com",)),
        (ONE, False, ("relay.example.com",)),
        (OPEN, False, ("relay.example.com",)),
        (NONE, True, ("relay.example.com",)),
        (ONE, True, ("a.example.com", "relay.example.com")),
    ],
)
def test_the_relay_is_added_to_what_a_box_reaches_by_itself(
    policy: NetworkPolicy, direct: bool, allowed: tuple[str, ...]
) -> None:
    own = own_policy(policy, direct=direct, relay=RELAY)
    assert (own.mode, own.allow) == (Network.ALLOW, allowed)
    assert [each.domain for each in sprites.direct(own).rules] == [*allowed, "*"]
    assert daytona.direct(own) == daytona.DaytonaNetwork(False, None, ",".join(allowed))
    assert modal.direct(own) == {"outbound_cidr_allowlist": [], "outbound_domain_allowlist": list(allowed)}


def test_without_a_relay_and_for_an_open_network_nothing_changes() -> None:
    assert own_policy(OPEN, direct=True, relay=RELAY) == OPEN
    for policy in (NONE, ONE, OPEN):
        assert own_policy(policy, direct=True, relay=None) == policy
        assert own_policy(policy, direct=False, relay=None) == NONE


def test_a_relay_does_not_narrow_the_default_list() -> None:
    with pytest.raises(Unsupported, match="the default list"):
        sprites.direct(own_policy(NetworkPolicy(Network.ALLOW), direct=True, relay=RELAY))


def test_programs_do_not_ask_the_boxs_own_proxy_for_the_relay() -> None:
    told = {"HTTPS_PROXY": "http://127.0.0.1:3128", "NO_PROXY": "localhost"}
    assert without_proxy(told, RELAY) == {**told, "NO_PROXY": "localhost,relay.example.com"}
    assert without_proxy(told, None) == told
    machine = {"HOME": "/root", "https_proxy": "http://vendor:1"}
    assert own_environment(machine, direct=False, relay=None) == {"HOME": "/root"}
    assert own_environment(machine, direct=False, relay=RELAY) == machine


def test_a_wrong_setting_names_its_option() -> None:
    assert read_relay("--modal-relay", None) is None
    with pytest.raises(CannotIsolate, match="a sprite filters names only"):
        sprites.check_relay(GuestUrl.parse("https://93.184.215.14"))
    assert sprites.check_relay(RELAY) is RELAY
    with pytest.raises(CannotIsolate, match=r"--modal-relay: .* has to be https"):
        read_relay("--modal-relay", "http://relay.example.com")
