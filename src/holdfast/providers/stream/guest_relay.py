"""A relay through which boxes with a network of their own reach the guest API, beside the guest's stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.api.box.network import DEFAULT_LIST, Network, NetworkPolicy
from holdfast.api.errors.boxes import CannotIsolate
from holdfast.api.guest_url import GuestUrl
from holdfast.providers.stream.home_guest import PROXIES


def read_relay(option: str, text: str | None) -> GuestUrl | None:
    """Returns the relay that a setting names. Raises `CannotIsolate`."""
    if not text:
        return None
    try:
        return GuestUrl.parse(text)
    except ValueError as error:
        raise CannotIsolate(f"{option}: {error}", hint=f"{option} https://relay.example.com") from None


def own_policy(policy: NetworkPolicy, *, direct: bool, relay: GuestUrl | None) -> NetworkPolicy:
    """Returns what a box may reach by itself. Everything else goes over its stream, if it is not `direct`."""
    own = policy if direct else NetworkPolicy()
    if relay is None or own.mode is Network.OPEN:
        return own
    allowed = (own.allow or (DEFAULT_LIST,)) if own.mode is Network.ALLOW else ()
    return replace(own, mode=Network.ALLOW, allow=tuple(dict.fromkeys((*allowed, relay.host))))


def own_environment(environment: Mapping[str, str], *, direct: bool, relay: GuestUrl | None) -> dict[str, str]:
    """Returns the variables of a machine for its box: its proxies are of no use where all traffic goes another way."""
    own = direct or relay is not None
    return {name: value for name, value in environment.items() if own or name not in PROXIES}


def without_proxy(environment: Mapping[str, str], relay: GuestUrl | None) -> Mapping[str, str]:
    """Returns the variables of a box, so that its programs do not ask the box's proxy for the relay."""
    if relay is None:
        return environment
    names = ("NO_PROXY", "no_proxy")
    return {name: f"{value},{relay.host}" if name in names else value for name, value in environment.items()}
