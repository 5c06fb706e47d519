"""`holdfast relay`: forwards requests of boxes to a server elsewhere. The relay itself is in holdfast.relay."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path  # the command line is read by these types
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.relay import Relay

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def relay(
    server: Annotated[
        str, Argument(metavar="URL", help="Address of the server, as this host reaches it.", show_default=False)
    ],
    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on. 0 picks a free one.")] = 8485,
    certificate: Annotated[
        Path | None, Option(metavar="FILE", help="Certificate chain (PEM), if boxes connect by TLS directly.")
    ] = None,
    key: Annotated[Path | None, Option(metavar="FILE", help="Private key of the certificate (PEM).")] = None,
    connections: Annotated[int, Option(min=1, max=100_000, help="Most connections at once.")] = 1024,
    as_json: JsonOption = False,
) -> None:
    """Forward requests of boxes to a server, until Ctrl-C. For boxes that reach this host, but not the server.

    Forwards only the guest API, with the tokens of runs as they are. It has no secret and stores nothing.

    \b
    holdfast relay https://holdfast.example.com          on the host that boxes reach
    holdfast up --daytona-relay https://relay.example.com   on the server
    """
    from holdfast.relay import Relay, RelayLimits, Upstream

    try:
        upstream = Upstream.parse(server)
    except ValueError as error:
        raise CommandError(
            str(error), next_step="holdfast relay https://holdfast.example.com", exit=Exit.USAGE
        ) from None
    tls = _tls(certificate, key)
    made = Relay(upstream, RelayLimits(connections=connections), tls=tls)

    def started(bound: int) -> None:
        url = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{bound}"
        if as_json:
            write_json({"url": url, "server": upstream.url.origin})
            return
        write_field("relay", Cell(url, "bold"))
        write_field("server", upstream.url.origin)
        if tls is None:
            write_field("tls", hint("none: let only a TLS proxy on this host use it, or give --certificate and --key"))
        write_field("next", hint("holdfast up --daytona-relay https://NAME-OF-THIS-HOST   where the server runs"))

    try:
        asyncio.run(_serve(made, host, port, started))
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host} port {port}: {error.strerror or error}", next_step="choose another with --port"
        ) from None
    if not as_json:
        note("stopped", "nothing was stored")


async def _serve(made: Relay, host: str, port: int, started: Callable[[int], None]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    bound = await made.start(host, port)
    try:
        started(bound)
        await stopped.wait()
    finally:
        await made.close()


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CommandError("--certificate and --key belong together", exit=Exit.USAGE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise CommandError(f"cannot use {certificate} with {key}: {error}", exit=Exit.USAGE) from None
    return context
