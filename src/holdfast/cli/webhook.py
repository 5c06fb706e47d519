"""`holdfast webhook`: requests that the server sends when something happens on threads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.errors import CommandError, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.removal import remove_named
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import YesOption
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_table
from holdfast.cli.terminal.durations import describe_duration

if TYPE_CHECKING:
    from holdfast.api.webhooks import Webhook, WebhookDelivery, WebhookSecret
    from holdfast.client import Client

IdArgument = Annotated[str, Argument(metavar="ID", help="Id of the webhook.", show_default=False)]


def add(
    url: Annotated[str, Argument(metavar="URL", help="Where requests are sent to.", show_default=False)],
    event: Annotated[
        list[str] | None,
        Option(
            "--event",
            metavar="EVENT",
            help="Event to send: run.started, run.finished, needs-you, session.state or budget. Can be given several"
            " times. Default: all.",
        ),
    ] = None,
    thread: Annotated[
        list[str] | None,
        Option("--thread", metavar="ID", help="Thread to watch. Can be given several times. Default: all."),
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Add a webhook. It gets what happens from now on, signed with a secret that is shown only once.

    \b
    holdfast webhook add https://ci.example.com/holdfast --event run.finished --event needs-you
    """

    from holdfast.api.webhooks import WebhookEvent

    try:
        events = tuple(map(WebhookEvent, event or ()))
    except ValueError as error:
        raise usage_error(str(error), f"the events are {', '.join(WebhookEvent)}") from None

    async def work(client: Client) -> WebhookSecret:
        return await client.webhooks.add(url, events, thread or ())

    made = ask(where, work)
    if as_json:
        write_json(made.to_json())
        return
    _print(made.webhook)
    _print_secret(made)
    write_field("next", hint(f"holdfast webhook test {made.webhook.id}"))


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List webhooks, and how their latest deliveries went."""

    async def work(client: Client) -> list[Webhook]:
        return await client.webhooks.list()

    found = ask(where, work)
    if as_json:
        write_json({"webhooks": [each.to_json() for each in found]})
        return
    if not found:
        write_field("no webhooks", hint("add one with holdfast webhook add URL"))
        return
    rows = [
        (
            Cell(each.id, "bold"),
            Cell(f"failed {each.failures} times", "yellow") if each.failures else Cell("ok", "green"),
            ", ".join(each.events),
            ", ".join(each.threads) or "all",
            Cell(each.url, "dim"),
        )
        for each in found
    ]
    write_table(("id", "state", "events", "threads", "url"), rows)


def show(id: IdArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Show a webhook and its latest deliveries, newest first."""

    async def work(client: Client) -> Webhook:
        return await client.webhooks.get(id)

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return
    _print(found)
    if found.last_error is not None and found.next_attempt_at is not None:
        wait = describe_duration(max(0.0, found.next_attempt_at / 1000 - time.time()))
        note("failed", f"{found.failures} times: {found.last_error}; the next attempt is in {wait}")
    now = time.time()
    rows = [
        (
            f"{describe_duration(now - each.at / 1000)} ago",
            Cell(each.state.value, "green" if each.state == "delivered" else "yellow"),
            each.type,
            each.thread,
            Cell(each.error or "", "dim"),
        )
        for each in found.deliveries
    ]
    write_table(("when", "state", "event", "thread", "error"), rows)


def send_test(id: IdArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Send a test event once, and say what came of it."""

    async def work(client: Client) -> WebhookDelivery:
        return await client.webhooks.test(id)

    delivery = ask(where, work)
    if as_json:
        write_json(delivery.to_json())
    elif delivery.error is None:
        write_field("delivered", delivery.event)
    if delivery.error is not None:
        raise CommandError(
            f"the test event was not delivered: {delivery.error}",
            next_step=f"holdfast webhook show {id}",
            exit=Exit.FAILURE,
        )


def rotate(id: IdArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Give a webhook a new secret. For a day, requests are signed with both the new one and the one before."""

    async def work(client: Client) -> WebhookSecret:
        return await client.webhooks.rotate(id)

    made = ask(where, work)
    if as_json:
        write_json(made.to_json())
        return
    write_field("rotated", Cell(id, "bold"), Cell(f"  version {made.webhook.secret_version}", "dim"))
    _print_secret(made)


def remove(id: IdArgument, yes: YesOption = False, *, where: Where, as_json: JsonOption = False) -> None:
    """Remove a webhook. What was not delivered is not sent."""
    remove_named(
        id,
        f"webhook {id}",
        "holdfast webhook remove",
        where=where,
        yes=yes,
        as_json=as_json,
        check=lambda client: client.webhooks.get(id),
        remove=lambda client: client.webhooks.remove(id),
        key="id",
    )


def _print(webhook: Webhook) -> None:
    write_field("webhook", Cell(webhook.id, "bold"))
    write_field("url", webhook.url)
    write_field("events", ", ".join(webhook.events))
    write_field("threads", ", ".join(webhook.threads) or "all")


def _print_secret(made: WebhookSecret) -> None:
    write_field("secret", made.secret)
    note("keep it", "the secret is not shown again; holdfast webhook rotate makes another one")
