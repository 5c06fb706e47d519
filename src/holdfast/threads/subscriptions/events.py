"""The events that webhooks are about: which entries of a thread are one, what is sent, and how it is signed. Pure.

A request is signed as Standard Webhooks defines it, so that receivers need no code of ours: `webhook-signature` has
`v1,<base64 of HMAC-SHA256>` over `<webhook-id>.<webhook-timestamp>.<body>`. After a rotation of the secret there are
two of them for a day.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from holdfast.api.outcomes import NEEDS_DECISION
from holdfast.api.webhooks import WebhookEvent
from holdfast.threads.access.seals import SEAL, Origin, Seals
from holdfast.threads.model_events import BUDGET
from holdfast.threads.run_events import FINISHED, STARTED
from holdfast.threads.selection import Selection
from holdfast.threads.session_events import QUESTION, SESSION_STATES
from holdfast.threads.subscriptions.records import Subscription

TEST: Final = "webhook.test"
MOST_ATTEMPTS: Final = 300
"""In a row, of one event: about five hours. Then the next events are sent."""
ROTATION_MS: Final = 24 * 3600 * 1000
"""How long requests are also signed with the secret before."""
MOST_DELIVERIES: Final = 20
"""That are kept of one webhook."""
_MAX_PAYLOAD: Final = 32 * 1024
_TYPES: Final[Mapping[WebhookEvent, tuple[str, ...]]] = {
    WebhookEvent.RUN_STARTED: (STARTED,),
    WebhookEvent.RUN_FINISHED: (FINISHED,),
    WebhookEvent.NEEDS_YOU: (FINISHED, QUESTION),
    WebhookEvent.SESSION_STATE: tuple(SESSION_STATES),
    WebhookEvent.BUDGET: (BUDGET,),
}


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    """Of the entry, and what kind of event it is: one entry can be two."""
    type: str
    thread: str
    at: int
    payload: Mapping[str, Any]

    def body(self) -> bytes:
        payload = self.payload
        if len(orjson.dumps(payload)) > _MAX_PAYLOAD:
            payload = {name: payload[name] for name in ("type", "run") if name in payload}
        return orjson.dumps(
            {"type": self.type, "timestamp": self.at, "data": {"thread": self.thread, "payload": payload}}
        )


def selection_of(wanted: Sequence[str]) -> Selection:
    """Selects the entries that may be events of these types."""
    return Selection(tuple(dict.fromkeys(each for name in wanted for each in _TYPES[WebhookEvent(name)])), live=True)


def events_of(thread: str, entry: Mapping[str, Any], wanted: Iterable[str], seals: Seals) -> list[Event]:
    """Returns the events that an entry is. None if a client may have written it: clients write signals too."""
    if seals.origin(thread, entry) is not Origin.HERE:
        return []
    payload = {name: value for name, value in entry["payload"].items() if name != SEAL}
    found = [
        event
        for event in map(WebhookEvent, wanted)
        if payload["type"] in _TYPES[event] and (event is not WebhookEvent.NEEDS_YOU or _needs_you(payload))
    ]
    return [Event(f"{entry['id']}.{event}", event, thread, entry["ts"], payload) for event in found]


def _needs_you(payload: Mapping[str, Any]) -> bool:
    error = payload.get("error")
    return payload["type"] == QUESTION or (isinstance(error, dict) and error.get("code") in NEEDS_DECISION)


class WebhookSecrets:
    """The secrets of webhooks. They are derived from the root secret of the tenant, so none of them is stored."""

    def __init__(self, root: bytes) -> None:
        self._root = root

    def secret(self, webhook: Subscription, version: int) -> str:
        # The time of creation, so that an id that is used again has another secret.
        text = f"{webhook.id} {webhook.created_at} {version}"
        return f"whsec_{base64.b64encode(self._key(text)).decode()}"

    def headers(self, webhook: Subscription, id: str, body: bytes, now: int) -> dict[str, str]:
        """The headers of a request, with its signatures at `now` (milliseconds)."""
        versions = [webhook.secret_version]
        if webhook.rotated_at is not None and now - webhook.rotated_at < ROTATION_MS:
            versions.append(webhook.secret_version - 1)
        seconds = now // 1000
        signatures = [sign(self.secret(webhook, version), id, seconds, body) for version in versions]
        return {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(seconds),
            "webhook-signature": " ".join(signatures),
        }

    def _key(self, text: str) -> bytes:
        return hmac.digest(self._root, text.encode(), hashlib.sha256)


def sign(secret: str, id: str, seconds: int, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = hmac.digest(key, b"%b.%d.%b" % (id.encode(), seconds, body), hashlib.sha256)
    return f"v1,{base64.b64encode(signature).decode()}"
