"""`holdfast box port`: the URL of a port in a box, or forwarding of the port to this machine. For interpreters, too."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.errors import CommandError, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.names import BoxArgument, open_box
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, is_terminal, note, write_field, write_json, write_line

if TYPE_CHECKING:
    from holdfast.boxes import Box, Connection, Preview
    from holdfast.client import Client

OpenBox = Callable[["Client"], Awaitable["Box"]]
"""Opens the box; the caller closes it."""
Accepted = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]

_LOCALHOST: Final = "127.0.0.1"
_TRY_ANOTHER: Final = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
_PIECE: Final = 1 << 16
_AT_ONCE: Final = 256
"""Most connections forwarded at the same time; more wait to be accepted."""


PortArgument = Annotated[int, Argument(metavar="PORT", min=1, max=65535, help="Port in the box.", show_default=False)]
LocalPortArgument = Annotated[
    int | None,
    Argument(
        metavar="LOCALPORT",
        min=0,
        max=65535,
        help="With --forward: port on this machine. Default: the same, or a free one.",
        show_default=False,
    ),
]
ForwardOption = Annotated[
    bool, Option("--forward", "-f", help="Listen on this machine and forward connections, until Ctrl-C.")
]

LocalhostOption = Annotated[
    bool,
    Option("--localhost", help="With --forward: listen on 127.0.0.1, whose cookies all programs here share."),
]
AddressOption = Annotated[
    bool, Option("--address", help="A URL for programs that keep only its host and port. Valid for twelve hours.")
]


def port(
    box: BoxArgument,
    port: PortArgument,
    local: LocalPortArgument = None,
    forward: ForwardOption = False,
    address: AddressOption = False,
    localhost: LocalhostOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Print the URL of a port in a box, or forward the port to this machine.

    The URL is for HTTP, through the server. It has a token for a browser. With --address, host and port are all that a
    program needs. --forward is for any TCP, such as databases and debuggers. It listens on an address of this machine
    that no other port shares, such as 127.80.2.9: browsers keep cookies by address, not by port.

    \b
    holdfast box port b-1 8000
    holdfast box port b-1 8000 --address
    holdfast box port b-1 5432 --forward
    holdfast box port b-1 5432 --forward 15432
    """
    command = f"holdfast box port {box} {port}"
    check_local_port(local, command, forward=forward)
    if forward and address:
        raise usage_error("--forward and --address do not go together", f"{command} --address")
    if forward:
        own = (_LOCALHOST,) if localhost else None
        return forward_port(where, lambda client: open_box(client, box), port, local, own, as_json=as_json)

    async def work(client: Client) -> Preview:
        async with await open_box(client, box) as handle:
            return await (client.boxes.preview_address(handle.id, port) if address else handle.preview(port))

    show_preview(ask(where, work), command, as_json=as_json)
    return Exit.OK


def check_local_port(local: int | None, command: str, *, forward: bool) -> None:
    if local is not None and not forward:
        raise usage_error(f"LOCALPORT {local} needs --forward", f"{command} --forward {local}")


def forward_port(
    where: Where,
    open: OpenBox,
    port: int,
    local: int | None,
    hosts: Sequence[str] | None = None,
    *,
    as_json: bool,
) -> Exit:
    """Forward a port of a box until Ctrl-C. `hosts` are the addresses to listen on, in the order in which they are
    tried. Default: one of the port's own."""
    try:
        ask(where, lambda client: _forward(client, open, port, local, hosts, as_json=as_json))
    except KeyboardInterrupt:
        if not as_json:
            note("stopped", f"port {port} is no longer forwarded; the box keeps running")
    return Exit.INTERRUPTED


def show_preview(preview: Preview, command: str, *, as_json: bool) -> None:
    """Print the URL of a port. `command` is the one that printed it, and `--forward` is added to it."""
    if as_json:
        write_json({"url": preview.url, "headers": dict(preview.headers)})
    elif is_terminal():
        write_field("url", Cell(preview.url, "bold"))
        if "_token=" in preview.url:
            write_field("", Cell("valid for five minutes; a browser that has opened it keeps its access", "dim"))
        for name in preview.headers:
            write_field("header", name, Cell("  must be sent; --json shows its value", "dim"))
        write_field("next", hint(f"{command} --forward"), Cell("   forwards it here", "dim"))
    else:
        write_line(preview.url)


async def _forward(
    client: Client, open: OpenBox, port: int, local: int | None, hosts: Sequence[str] | None, *, as_json: bool
) -> None:
    async with await open(client) as box:
        room = asyncio.Semaphore(_AT_ONCE)
        forwards: set[asyncio.Future[None]] = set()
        reported: set[str] = set()

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async with room:
                problem = await _forward_connection(box, port, reader, writer)
            if problem is not None and problem not in reported and not as_json:
                reported.add(problem)  # only once: a browser tries again many times
                note("refused", problem)

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # asyncio reports its own tasks as failed when they are cancelled, so we make ours.
            task = asyncio.ensure_future(forward(reader, writer))
            forwards.add(task)
            task.add_done_callback(forwards.discard)

        listener = await _listen(accepted, hosts or own_addresses(box.id, port), port, local)
        try:
            host, bound = listener.sockets[0].getsockname()[:2]
            if as_json:
                write_json({"box": box.id, "port": port, "host": host, "localPort": bound})
            else:
                write_field("forwarding", Cell(f"{host}:{bound}", "bold"), f" to port {port} of {box.id}")
                if local is None and bound != port:
                    write_field("", Cell(f"port {port} of that address is in use, or for the system alone", "dim"))
                write_field("", Cell("stop with Ctrl-C", "dim"))
            await asyncio.Event().wait()
        finally:
            listener.close()
            for task in tuple(forwards):
                task.cancel()
            await asyncio.gather(*forwards, return_exceptions=True)


def own_addresses(box: str, port: int) -> tuple[str, ...]:
    """The addresses for a port of a box. The first one is always the same for it, and almost surely no other's.

    Where the whole of 127.0.0.0/8 is not this machine, as on macOS, the last one is left.
    """
    digest = hashlib.sha256(f"forwarded port {box} {port}".encode()).digest()
    # Neither 0, 1 nor 255 in the last place: some tools take these for something else.
    return f"127.{digest[0]}.{digest[1]}.{2 + digest[2] % 253}", _LOCALHOST


async def _listen(accepted: Accepted, hosts: Sequence[str], port: int, local: int | None) -> asyncio.Server:
    """Listen on the local port if one was given; otherwise on the box's port number, or on any free port."""
    wanted = [(host, number) for host in hosts for number in ([local] if local is not None else [port, 0])]
    for host, number in wanted:
        try:
            return await asyncio.start_server(accepted, host, number)
        except OSError as error:
            if (host, number) == wanted[-1] or error.errno not in _TRY_ANOTHER:
                raise CommandError(
                    f"cannot listen on {host}:{number}: {error.strerror or error}",
                    next_step="choose another LOCALPORT, or 0 for any free port",
                ) from None
    raise AssertionError("unreachable")


async def _forward_connection(
    box: Box, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> str | None:
    """Forward one connection until both sides are done. Returns a message if that failed."""
    from holdfast.client import HoldfastError

    try:
        async with await box.connect(port) as far:
            await _run_both(_upstream(reader, far), _downstream(far, writer))
    except HoldfastError as error:
        return error.message
    except OSError:
        return None  # the local client disconnected
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return None


async def _run_both(*works: Coroutine[Any, Any, None]) -> None:
    """Run both to their end; if one fails, the other is cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _upstream(reader: asyncio.StreamReader, far: Connection) -> None:
    while data := await reader.read(_PIECE):
        await far.write(data)
    await far.close_write()


async def _downstream(far: Connection, writer: asyncio.StreamWriter) -> None:
    while data := await far.read(_PIECE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
