"""Describes the Modal provider: its settings, its checks and how to create it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.providers.descriptor import ProviderDescriptor, Setting, SettingKind, relay_setting

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.providers.check_result import CheckResult
    from holdfast.providers.modal.account import Credentials

_CONFIG: Final = ".modal.toml"
_HINT: Final = "make a token with modal token new, and give it: holdfast provider add modal"


def _make(home: Path, egress: Egress | None, settings: Mapping[str, Any]) -> Provider:
    from holdfast.api.errors.boxes import CannotIsolate

    token, secret = settings["modal_token_id"], settings["modal_token_secret"]
    if bool(token) != bool(secret):
        raise CannotIsolate("one half of Modal's token is missing: it has an id and a secret", hint=_HINT)
    credentials = _credentials(token, secret, settings["modal_server_url"])
    if credentials is None:
        from holdfast.providers.unavailable import AbsentProvider

        return AbsentProvider("modal", CannotIsolate("there is no token for Modal", hint=_HINT))
    from holdfast.providers.modal.provider import ModalProvider
    from holdfast.providers.stream.guest_relay import read_relay

    return ModalProvider(
        home / "modal",
        credentials,
        app=settings["modal_app"] or "holdfast",
        environment=settings["modal_environment"],
        image=settings["modal_image"],
        ports=_ports(settings["modal_ports"]),
        direct=settings["modal_direct"],
        relay=read_relay("--modal-relay", settings["modal_relay"]),
        egress=egress,
    )


def _credentials(token: str | None, secret: str | None, server_url: str | None) -> Credentials | None:
    """Returns the token that was given, or that of the vendor's configuration file. Imports the SDK only for these."""
    if token and secret:
        from holdfast.providers.modal.account import Credentials

        return Credentials(token, secret, server_url) if server_url else Credentials(token, secret)
    if not _has_config_file() or find_spec("modal") is None:
        return None
    from holdfast.providers.modal.account import Credentials

    return Credentials.of_config_file()


def _has_config_file() -> bool:
    return (Path.home() / _CONFIG).is_file()


def _ports(text: str | None) -> tuple[int, ...]:
    from holdfast.api.errors.boxes import CannotIsolate

    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if not all(word.isdigit() and 0 < int(word) < 65536 for word in words):
        raise CannotIsolate(f"{text!r} are no ports", hint="name ports like 3000,8000 with --modal-ports")
    return tuple(int(word) for word in words)


def _examine(home: Path) -> Iterator[CheckResult]:
    from holdfast.providers.modal.checks import judge_modal

    yield judge_modal(find_spec("modal") is not None, _has_config_file())


MODAL: Final = ProviderDescriptor(
    "modal",
    _make,
    settings=(
        Setting(
            "modal_token_id",
            "Id of a token for boxes at Modal.",
            metavar="ID",
            variable="MODAL_TOKEN_ID",
            secret=True,
        ),
        Setting(
            "modal_token_secret",
            "Secret of that token.",
            metavar="SECRET",
            variable="MODAL_TOKEN_SECRET",
            secret=True,
        ),
        Setting(
            "modal_server_url",
            "Address of Modal's API, if not the usual one.",
            metavar="URL",
            variable="MODAL_SERVER_URL",
        ),
        Setting("modal_app", "App of the boxes at Modal; holdfast by default.", metavar="NAME"),
        Setting(
            "modal_environment",
            "Environment of that app, if not the default one.",
            metavar="NAME",
            variable="MODAL_ENVIRONMENT",
        ),
        Setting("modal_image", "Image of boxes at Modal that ask for none.", metavar="NAME"),
        Setting(
            "modal_ports", "Ports of boxes at Modal that get an encrypted tunnel, such as 3000,8000.", metavar="PORTS"
        ),
        Setting(
            "modal_direct",
            "Let Modal keep the network policy of boxes: their traffic does not go through this server.",
            SettingKind.SWITCH,
        ),
        relay_setting("modal"),
    ),
    examine=_examine,
    credential_file=f"~/{_CONFIG}",
)
