"""The settings of a server, declared once. Read once, at the start, and passed down.

A field made with `setting` can be set by the operator: by an option of `holdfast up`, an environment variable, or the
file `holdfast.toml` in the home, in this order. The options, the file, `holdfast config show` and docs/configuration.md
all follow from these declarations. Other fields are for tests and for the server itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from holdfast.api.limits import MOST_BYTES
from holdfast.client.local_server import DEFAULT_PORT

DEFAULT_POOL: Final = 8
"""An idle local box takes about 3 MB, and none is created before the second request for the same spec."""
DEFAULT_PACKAGE_CACHE: Final = 4096
"""Megabytes."""
DEFAULT_SESSIONS: Final = 100
_DECLARED: Final = "holdfast setting"


@dataclass(frozen=True, slots=True)
class Declared:
    """How the operator of a server sets one of its settings."""

    name: str
    """The field, and the key in the file."""
    default: Any
    help: str
    metavar: str | None = None
    option: str = ""
    variable: str = ""
    """The environment variable."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    """Never shown."""
    off: bool = False
    """A switch that is on by default: its option and its variable turn it off."""
    hidden: bool = False

    @property
    def kind(self) -> type:
        """The type of its values: `str`, also if the default is None, `int`, `float`, `bool` or `tuple`."""
        return str if self.default is None else type(self.default)


def setting(
    default: Any,
    help: str,
    *,
    metavar: str | None = None,
    option: str = "",
    variable: str = "",
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    off: bool = False,
    hidden: bool = False,
) -> Any:
    """A field that the operator sets. Option and variable have its name unless they are given."""
    declared = Declared("", default, help, metavar, option, variable, least, most, choices, secret, off, hidden)
    return field(default=default, metadata={_DECLARED: declared})


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    host: str = setting("127.0.0.1", "Address to listen on.", metavar="ADDRESS", variable="HOLDFAST_LISTEN_HOST")
    # Not HOLDFAST_PORT, which Kubernetes sets for a service called holdfast.
    port: int = setting(
        DEFAULT_PORT,
        "Port to listen on. 0 picks a free one.",
        variable="HOLDFAST_LISTEN_PORT",
        least=0,
        most=65535,
    )
    long_poll_timeout: float = setting(
        30.0, "How long a long-poll waits for new entries.", metavar="SECONDS", least=0.1
    )
    auth: bool = setting(
        True, "Require no key. Only on loopback.", option="--no-auth", variable="HOLDFAST_NO_AUTH", off=True
    )
    pool: int = setting(
        DEFAULT_POOL,
        "How many boxes to keep ready at most, for requests like earlier ones. 0 for none.",
        metavar="BOXES",
        least=0,
        most=1000,
    )
    max_sessions: int = setting(
        DEFAULT_SESSIONS, "How many sessions may be awake at once.", metavar="N", least=1, most=100_000
    )
    question_timeout: int = setting(
        600,
        "How long a question or a permission of a session's agent waits for somebody.",
        metavar="SECONDS",
        least=1,
        most=7 * 24 * 3600,
    )
    allow_private: tuple[str, ...] = setting(
        (), "Private host, address or network that boxes may reach. Can be given several times.", metavar="HOST"
    )
    egress_proxy: str | None = setting(
        None, "Proxy for boxes: http://host:port, or env:NAME or file:PATH with its URL.", metavar="PROXY"
    )
    package_cache: int = setting(
        DEFAULT_PACKAGE_CACHE,
        "Most megabytes of downloaded packages to keep for boxes. 0 for none.",
        metavar="MB",
        least=0,
        most=10_000_000,
    )
    registry_mirrors: tuple[str, ...] = setting(
        (),
        "Registry to try before Docker Hub, for image pull. Can be given several times.",
        metavar="URL",
        option="--registry-mirror",
        variable="HOLDFAST_REGISTRY_MIRROR",
    )
    daytona: bool = setting(
        False,
        "Serve the Daytona API over the boxes of this server, at /compat/daytona.",
        variable="HOLDFAST_SERVE_DAYTONA",
    )
    preview_url: str | None = setting(
        None, "Where ports of boxes are reached: names below its host lead to this server.", metavar="URL"
    )
    delegation: str = setting(
        "", "Limits of a tree of tasks: depth=8 breadth=16 boxes=16 threads=200, or some of them.", metavar="LIMITS"
    )
    service_apis: tuple[str, ...] = setting(
        (),
        "API of a git host, of telegram or of slack, if it is not the usual one: NAME=URL. Can be given several times.",
        metavar="NAME=URL",
        option="--service-api",
        variable="HOLDFAST_SERVICE_API",
    )
    tenant_providers: tuple[str, ...] = setting(
        ("local",),
        "Kind of provider that tenants other than the default one may use. Can be given several times.",
        metavar="KIND",
        option="--tenant-provider",
        variable="HOLDFAST_TENANT_PROVIDER",
    )
    public_url: str | None = setting(
        None, "The URL of this server, as browsers know it: behind a proxy, and for logins.", metavar="URL"
    )
    oidc_issuer: str | None = setting(
        None, "Identity provider (OpenID Connect) at which members log in.", metavar="URL"
    )
    oidc_client_id: str | None = setting(None, "What this server is called there.", metavar="ID")
    oidc_client_secret: str | None = setting(
        None,
        "Its secret there, if it has one. Better in the file than on a command line.",
        metavar="SECRET",
        secret=True,
    )
    oidc_claim: str = setting("email", "The claim that is the name of a member.", metavar="CLAIM")
    oidc_name: str = setting("single sign-on", "What the page calls the identity provider.", metavar="NAME")
    log_level: str = setting(
        "info", "Level of the log on standard error.", choices=("debug", "info", "warning", "error")
    )
    first_key: bool = setting(
        True,
        "Create an API key if there is none yet, and print it once.",
        option="--no-first-key",
        variable="HOLDFAST_NO_FIRST_KEY",
        off=True,
        hidden=True,
    )
    max_body: int = MOST_BYTES
    """Most bytes of a request body."""
    request_timeout: float = 60.0
    """Seconds that a request may take to arrive."""
    keep_alive: float = 75.0
    """Seconds that a connection may stay open between requests."""
    tail_cycle: float = 60.0
    """Seconds after which an event stream ends, and the client reconnects."""
    public_only: bool = False
    """Whether models and registries are reached at public addresses only. So it is for tenants."""
    provider_kinds: tuple[str, ...] | None = None
    """Kinds of providers that boxes may have. None means all."""
    provider_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Settings that providers declare, by name (`holdfast.providers.descriptor`), given on the command line."""
    provider_environment: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The same, as the variables of the environment and the file have them. A stored account comes before them."""


def declared() -> tuple[Declared, ...]:
    """Returns all settings that the operator sets, in the order of the help."""
    return tuple(_named(each.name, each.metadata[_DECLARED]) for each in fields(Settings) if _DECLARED in each.metadata)


def _named(name: str, given: Declared) -> Declared:
    word = name.replace("_", "-")
    return Declared(
        name,
        given.default,
        given.help,
        given.metavar,
        given.option or f"--{word}",
        given.variable or f"HOLDFAST_{name.upper()}",
        given.least,
        given.most,
        given.choices,
        given.secret,
        given.off,
        given.hidden,
    )
