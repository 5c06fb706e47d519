"""`holdfast thread trace`: where the time of each run went, from the thread alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.errors import CommandError, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, ThreadArgument, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import Cell, hint, write_field, write_json, write_table

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.exports.trace import Span

_MOST_ENTRIES: Final = 200_000
_SECONDS: Final = 15.0


def trace(
    id: ThreadArgument,
    send: Annotated[
        str | None,
        Option(
            "--send", metavar="URL", help="Send it to a collector of OpenTelemetry: http://localhost:4318/v1/traces"
        ),
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show where the time of each run went: its box, its agent, its model calls and its tools.

    With --json, prints the spans as OTLP in JSON. The same thread has the same ids each time.

    \b
    holdfast thread trace t-3kd9
    holdfast thread trace t-3kd9 --send http://localhost:4318/v1/traces
    """
    from holdfast import __version__
    from holdfast.exports.trace import as_otlp, spans_of

    async def work(client: Client) -> tuple[str, list[Span]]:
        thread = await find_thread(client, id)
        found = [each.to_json() async for each in client.thread(thread).entries(limit=_MOST_ENTRIES)]
        return thread, spans_of(thread, found)

    thread, spans = ask(where, work)
    document = as_otlp(spans, __version__)
    if send is not None:
        _send(send, document)
    if as_json:
        write_json(document)
    elif not spans:
        write_field("no runs", hint(f'begin with holdfast resume {thread} "…" --agent NAME'))
    else:
        write_table(("what", "began", "took", "error"), _rows(spans))


def _rows(spans: list[Span]) -> list[tuple[Cell | str, ...]]:
    roots = {each.trace: each for each in spans if each.parent is None}
    depths = {each.id: 0 if each.parent is None else 1 if each.parent == roots[each.trace].id else 2 for each in spans}
    order = list(roots)
    spans = sorted(spans, key=lambda each: (order.index(each.trace), each.parent is not None, each.start))
    return [
        (
            Cell("  " * depths[each.id] + plain(each.name), "" if each.parent else "bold"),
            f"{(each.start - roots[each.trace].start) / 1000:.1f} s",
            "in progress" if each.end is None else f"{(each.end - each.start) / 1000:.1f} s",
            Cell(plain(each.error or ""), "red"),
        )
        for each in spans
    ]


def _send(url: str, document: dict[str, Any]) -> None:
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise usage_error(f"{url!r} is not a URL", "write http://HOST:4318/v1/traces")
    body, headers = json.dumps(document).encode(), {"content-type": "application/json"}
    try:
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=_SECONDS):
            pass
    except OSError as error:  # of which those of HTTP are one
        raise CommandError(
            f"the collector at {url} did not take the trace: {error}",
            next_step="check that it takes OTLP over HTTP there",
            exit=Exit.UNREACHABLE,
        ) from None
