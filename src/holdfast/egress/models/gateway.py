"""The model gateway: carries what an agent asks of its model to the provider and back, and adds the key on the way.

An agent holds a token of its run. What that grants is found out by who calls `handle`; here it becomes a key, for the
models of that run alone. Bodies go through as they come, both ways. Only what they used is read beside.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from holdfast.api.errors.models import ModelError
from holdfast.api.model.models import Api
from holdfast.egress.models.attempts import Attempts, Candidate, Question
from holdfast.egress.models.exchange import (
    REASON,
    Cut,
    Exchange,
    GatewayLimits,
    Left,
    Receive,
    Refused,
    Send,
    over_budget_status,
    send_refusal,
)
from holdfast.egress.models.failover import Pauses
from holdfast.egress.models.headers import ModelRequest, find_route, forwarded_query
from holdfast.egress.models.meter import Call, Meter, OverBudget, Terms
from holdfast.egress.models.model import ModelChoice
from holdfast.egress.models.registry import Models
from holdfast.egress.models.upstream import Upstream
from holdfast.egress.models.usage import ANY_SIZE

__all__ = ["REASON", "Answered", "GatewayLimits", "Grant", "ModelGateway", "OnAnswer"]

log = logging.getLogger(__name__)

TellTrouble = Callable[[str], Awaitable[None]]
_TROUBLES: Final = ("unreachable", "silent", "broken", "redirect")
"""Reasons for which the provider or the connection to it is to blame, not the agent."""


class Grant(Protocol):
    """What the token of a run allows. `threads.access.credentials.RunGrant` implements it."""

    @property
    def run(self) -> str: ...

    @property
    def model(self) -> str:
        """`NAME/MODEL`."""
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a request, for accounting."""

    run: str
    model: str
    """`NAME/MODEL`, as granted to the run."""
    status: int
    """499 if the agent disconnected first. 502 from the provider, or from us if the provider could not be reached."""
    sent: int
    """Bytes of the request's body."""
    received: int
    """Bytes of the answer's body."""
    milliseconds: int


OnAnswer = Callable[[Answered], None]


def _ticks() -> int:
    return time.monotonic_ns() // 1_000_000


class ModelGateway:
    """Plain ASGI under `/model`, for callers with a grant. The creator closes it."""

    def __init__(
        self,
        models: Models,
        make_upstream: Callable[[], Upstream],
        *,
        meter: Meter | None = None,
        limits: GatewayLimits | None = None,
        on_answer: OnAnswer | None = None,
        ticks: Callable[[], int] = _ticks,
    ) -> None:
        """`make_upstream` is called on the first request, `on_answer` after each request. Without a `meter`, nothing is
        counted. `ticks` returns the milliseconds of a monotonic clock.
        """
        self._models = models
        self.meter = meter
        self._limits = limits or GatewayLimits()
        self._attempts = Attempts(make_upstream, self._limits, Pauses(ticks))
        self._on_answer = on_answer or (lambda answered: None)
        self._busy: Counter[str] = Counter()

    async def close(self) -> None:
        """Closing twice has no effect."""
        await self._attempts.close()

    async def handle(
        self,
        scope: Any,
        receive: Receive,
        send: Send,
        grant: Grant,
        *,
        tell: TellTrouble | None = None,
        terms: Terms | None = None,
    ) -> None:
        """Answer a request of the run that has this grant. `terms` has its budget and its fallbacks. Without terms, the
        call belongs to no thread.

        Before the agent gets an error, `tell` is called with the reason why the provider gave no answer, since not
        every agent reports it. If the provider breaks off in the middle, this returns without completing the answer.
        Then the server closes the connection, and the agent sees a broken one as it would have without the gateway.
        """
        exchange = Exchange(scope, receive, send, self._limits)
        began = time.monotonic()
        status = 499
        try:
            status = await self._answer(exchange, grant, terms)
        except Refused as refused:
            status = refused.status
            if tell is not None and refused.reason in _TROUBLES:
                await tell(refused.message)
            await exchange.refuse(refused.status, refused.reason, refused.message)
        except Left:
            pass
        except Cut as cut:
            status = 502
            log.warning("the answer of model %s for run %s broke off: %s", grant.model, grant.run, cut)
        finally:
            spent = round((time.monotonic() - began) * 1000)
            answered = Answered(grant.run, grant.model, status, exchange.sent, exchange.received, spent)
            log.info("model %s for run %s: %d", grant.model, grant.run, status, extra={"status": status, "ms": spent})
            self._on_answer(answered)

    async def refuse(self, scope: Any, send: Send, status: int, message: str) -> None:
        """Send an error in a form that agents understand, whatever API they use."""
        await send_refusal(scope, send, status, "refused", message)

    # --- one request ---

    async def _answer(self, exchange: Exchange, grant: Grant, terms: Terms | None) -> int:
        scope = exchange.scope
        route = find_route(scope["method"], scope["raw_path"])
        if route is None:
            raise Refused(
                404, "path", "the model gateway does not serve this path: it only forwards requests for answers"
            )
        try:
            choice = self._models.resolve(grant.model)
        except ModelError as error:
            raise Refused(403, "model", _with_hint(error)) from None
        if route == "alive":
            return await exchange.answer(200, {})
        if route == "models":
            return await exchange.answer(200, _catalog(choice.model))
        assert isinstance(route, ModelRequest)
        query = forwarded_query(scope["query_string"])
        if query is None:
            raise Refused(400, "query", "the query of this request is not supported by models")
        candidates = self._candidates(grant, choice, route, terms)
        if self._busy[grant.run] >= self._limits.at_once:
            raise Refused(429, "busy", f"this run asks its model {self._limits.at_once} things at once already")
        size = exchange.check_length()
        self._busy[grant.run] += 1
        call = None
        try:
            if self.meter is not None and not route.is_free:
                shown = ANY_SIZE if exchange.is_compressed else size
                terms = terms or Terms(None, grant.run)
                call = await self._open_call(self.meter, terms, candidates, route.api, shown)
            return await self._forward(exchange, Question(grant.run, route, query, candidates, call))
        finally:
            if call is not None:
                call.release()
            self._busy[grant.run] -= 1
            if not self._busy[grant.run]:
                del self._busy[grant.run]

    def _candidates(
        self, grant: Grant, choice: ModelChoice, route: ModelRequest, terms: Terms | None
    ) -> list[Candidate]:
        """Returns the run's own model and its fallbacks, those first that are not left alone at the moment."""
        own = self._candidate(choice, route)
        if terms is None or not terms.fallbacks or route.is_free:
            return [own]
        others = []
        for name in terms.fallbacks:
            try:
                others.append(replace(self._candidate(self._models.resolve(name), route), is_own=False))
            except (ModelError, Refused) as error:  # it was removed, or changed, since the launch
                log.info("the fallback %s of run %s cannot be used: %s", name, grant.run, error)
        return sorted([own, *others], key=lambda each: self._attempts.is_paused(grant.run, each))

    def _candidate(self, choice: ModelChoice, route: ModelRequest) -> Candidate:
        try:
            endpoint = self._models.endpoint(choice.name, route.api)
        except ModelError as error:
            raise Refused(403, "model", _with_hint(error)) from None
        if endpoint is None:
            spoken = ", ".join(choice.apis)
            raise Refused(404, "api", f"model {choice.name} does not speak {route.api}: it speaks {spoken}")
        return Candidate(choice, endpoint, self._models.revision(choice.name))

    async def _open_call(
        self, meter: Meter, terms: Terms, candidates: Sequence[Candidate], api: Api, size: int | None
    ) -> Call:
        try:
            return await meter.open(terms, candidates[0].choice, size)
        except OverBudget as error:
            raise Refused(over_budget_status(api), "budget", str(error)) from None

    async def _forward(self, exchange: Exchange, question: Question) -> int:
        """Returns when the answer is complete or the agent has disconnected. Then the provider's work is cancelled
        too."""
        carrying = asyncio.create_task(self._attempts.make(exchange, question))
        watching = asyncio.create_task(exchange.until_disconnected())
        try:
            await asyncio.wait((carrying, watching), return_when=asyncio.FIRST_COMPLETED)
            if carrying.done() or exchange.is_whole:
                return await carrying
            raise Left
        finally:
            for task in (carrying, watching):
                task.cancel()
            await asyncio.gather(carrying, watching, return_exceptions=True)


def _catalog(model: str) -> dict[str, Any]:
    """Returns the only model of a run, in the format of all APIs at once."""
    both = {"id": model, "object": "model", "created": 0, "owned_by": "holdfast"}
    data = {**both, "type": "model", "display_name": model, "created_at": "1970-01-01T00:00:00Z"}
    return {"object": "list", "data": [data], "has_more": False, "first_id": model, "last_id": model}


def _with_hint(error: ModelError) -> str:
    return f"{error.message}: {error.hint}" if error.hint else error.message
