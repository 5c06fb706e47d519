"""Asks the models of a run one after the other, until one has an answer, and passes that on as it comes.

Until then nothing is sent to the agent. A run with one model never waits here: its answer is passed on from its first
byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx

from holdfast.api.model.models import Api
from holdfast.egress.models.exchange import Cut, Exchange, GatewayLimits, Refused, over_budget_status
from holdfast.egress.models.failover import (
    MOST_ERROR,
    Failure,
    Opening,
    Pauses,
    Reason,
    classify,
)
from holdfast.egress.models.headers import Header, ModelRequest, headers_for_agent, headers_for_provider
from holdfast.egress.models.meter import Call, OverBudget
from holdfast.egress.models.model import ModelChoice
from holdfast.egress.models.registry import Endpoint
from holdfast.egress.models.request_body import Kept, RequestBody
from holdfast.egress.models.upstream import Upstream
from holdfast.egress.models.usage import Answer, Ending, UsageReader
from holdfast.redaction import Scrubber
from holdfast.threads import model_events
from holdfast.time_limit import time_limit

_REST_SECONDS: Final = 5.0
"""How long the end of an answer without content may take."""
_OF_THE_BODY: Final = (b"content-length", b"transfer-encoding", b"content-encoding")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be asked."""

    choice: ModelChoice
    endpoint: Endpoint
    revision: int
    is_own: bool = True
    """Whether the run was launched with it. The others are its fallbacks."""


@dataclass(frozen=True, slots=True)
class Question:
    """What an agent asks, and of whom."""

    run: str
    route: ModelRequest
    query: str
    candidates: Sequence[Candidate]
    """In the order in which they are asked. At least one."""
    call: Call | None
    """None if it is not metered."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """The answer of a model that failed, for the agent if all others fail too."""

    candidate: Candidate
    failure: Failure
    answer: tuple[int, list[Header], bytes] | Refused


class Attempts:
    """The connection to providers. The creator closes it."""

    def __init__(self, make_upstream: Callable[[], Upstream], limits: GatewayLimits, pauses: Pauses) -> None:
        """`make_upstream` is called on the first request."""
        self._make_upstream = make_upstream
        self._upstream: Upstream | None = None
        self._limits = limits
        self._pauses = pauses
        self._kept = Kept()

    async def close(self) -> None:
        """Closing twice has no effect."""
        if self._upstream is not None:
            upstream, self._upstream = self._upstream, None
            await upstream.close()

    def is_paused(self, run: str, candidate: Candidate) -> bool:
        return self._pauses.is_paused(run, str(candidate.choice), candidate.revision)

    async def make(self, exchange: Exchange, question: Question) -> int:
        """Returns the status of the answer that the agent got."""
        candidates = question.candidates
        body = RequestBody(exchange, self._kept, keep=len(candidates) > 1)
        kept: _Failed | None = None
        try:
            for number, candidate in enumerate(candidates):
                may_fail = number + 1 < len(candidates)
                outcome = await self._attempt(exchange, question, candidate, body, is_first=not number)
                if isinstance(outcome, int):
                    return outcome
                to = candidates[number + 1] if may_fail and body.can_repeat else None
                await self._tell(question, outcome, to)
                # The agent knows its own model best: what it says about waiting is meant for it.
                kept = outcome if kept is None or candidate.is_own else kept
                if to is None:
                    break
            assert kept is not None
            if isinstance(kept.answer, Refused):
                raise kept.answer
            await exchange.give(*kept.answer)
            return kept.answer[0]
        finally:
            await body.close()

    async def _attempt(
        self, exchange: Exchange, question: Question, candidate: Candidate, body: RequestBody, *, is_first: bool
    ) -> int | _Failed:
        """Ask one model. Returns the status if the agent has its answer."""
        is_chain = len(question.candidates) > 1
        endpoint, route = candidate.endpoint, question.route
        headers = headers_for_provider(exchange.scope["headers"], route.api, endpoint.key)
        content: AsyncIterator[bytes] | bytes
        if is_first and candidate.is_own:
            content = body.stream()
        else:
            if question.call is not None and not is_first:
                try:
                    question.call.check_price(str(candidate.choice))
                except OverBudget as error:
                    refusal = Refused(over_budget_status(route.api), "budget", str(error))
                    return _Failed(candidate, Failure(Reason.UNSUPPORTED, 402, str(error)), refusal)
            renamed = await body.for_model(candidate.choice.model)
            if renamed is None:
                refused = Refused(413, "too_large", "this request cannot be passed on to another model")
                return _Failed(candidate, Failure(Reason.UNSUPPORTED, 413, refused.message), refused)
            content = renamed
            headers = [(name, value) for name, value in headers if name not in _OF_THE_BODY]
        request = httpx.Request(
            "POST",
            f"{endpoint.url}{route.path}{f'?{question.query}' if question.query else ''}",
            headers=headers,
            content=content,
            extensions={"timeout": self._timeouts()},
        )
        answer = _Metered(question, candidate, exchange)
        host = urlsplit(endpoint.url).netloc
        try:
            response = await self._send(request, host, endpoint)
            if not is_chain:
                await body.close()
            try:
                return await self._pass_on(exchange, candidate, response, answer, host, is_chain=is_chain)
            finally:
                await response.aclose()
        except Refused as refused:
            answer.ending = Ending.WHOLE
            if is_chain and refused.reason == "unreachable":
                failure = Failure(Reason.UNREACHABLE, refused.status, refused.message)
                return _Failed(candidate, failure, refused)
            raise
        except Cut:
            answer.ending = Ending.CUT
            raise
        finally:
            await answer.charge()  # also if the agent has left, which cancels this

    async def _pass_on(
        self,
        exchange: Exchange,
        candidate: Candidate,
        response: httpx.Response,
        answer: _Metered,
        host: str,
        *,
        is_chain: bool,
    ) -> int | _Failed:
        status = response.status_code
        if 300 <= status < 400:
            answer.ending = Ending.WHOLE
            where = urlsplit(response.headers.get("location", "")).netloc[:200] or "somewhere"
            message = f"{host} sends us on to {where}, where its key does not go: correct the base URL"
            raise Refused(502, "redirect", message)
        pieces = answer.read(response)
        scrubber = Scrubber(candidate.endpoint.key)
        if is_chain:
            held, failure = await self._look(answer, response, pieces, candidate)
            if failure is not None:
                answer.ending = Ending.WHOLE
                headers = [
                    (name, scrubber.text(value.decode("latin-1")).encode("latin-1"))
                    for name, value in headers_for_agent(response.headers.raw)
                ]
                clean = scrubber.feed(held) + scrubber.rest()
                return _Failed(candidate, failure, (status, headers, clean))
            pieces = _chained(held, pieces)
        await exchange.pass_on(response, pieces, scrubber, answer.finish)
        return status

    async def _look(
        self, answer: _Metered, response: httpx.Response, pieces: AsyncIterator[bytes], candidate: Candidate
    ) -> tuple[bytes, Failure | None]:
        """Read the beginning of an answer. Returns it, and the failure that it is."""
        if response.status_code >= 400:
            held = bytearray()
            async for piece in pieces:
                held += piece
                if len(held) >= MOST_ERROR:
                    break
            return bytes(held), classify(response.status_code, bytes(held), response.headers, is_own=candidate.is_own)
        opening = Opening(answer.api, response.headers.get("content-type", ""))
        decided: Failure | bool | None = None
        async for piece in pieces:
            decided = opening.feed(piece)
            if decided is not None:
                break
        else:
            decided = opening.end()
        if not isinstance(decided, Failure):
            return b"".join(opening.held), None
        rest = 0
        with contextlib.suppress(TimeoutError):
            async with time_limit(_REST_SECONDS):
                async for piece in pieces:  # it ends with what it used, which is paid for
                    opening.held.append(piece)
                    rest += len(piece)
                    if rest > MOST_ERROR:
                        break
        return b"".join(opening.held), decided

    async def _tell(self, question: Question, failed: _Failed, to: Candidate | None) -> None:
        """Leave a model alone for a while, and tell the thread so once."""
        if len(question.candidates) == 1:
            return
        candidate, failure = failed.candidate, failed.failure
        was_known = self.is_paused(question.run, candidate)
        pause = self._pauses.add(question.run, str(candidate.choice), candidate.revision, failure)
        if was_known or question.call is None:
            return
        await question.call.tell(
            model_events.failover(
                run=question.run,
                model=str(candidate.choice),
                to=None if to is None else str(to.choice),
                reason=failure.reason.value,
                status=failure.status,
                message=Scrubber(candidate.endpoint.key).text(failure.message),
                pause_ms=pause,
            )
        )

    async def _send(self, request: httpx.Request, host: str, endpoint: Endpoint) -> httpx.Response:
        """Returns the provider's answer without its body."""
        if self._upstream is None:
            self._upstream = self._make_upstream()
        try:
            return await self._upstream.send(request)
        except httpx.PoolTimeout:
            raise Refused(503, "busy", "too many requests are in progress: try again") from None
        except httpx.ConnectTimeout:
            raise Refused(504, "unreachable", f"{host} did not answer within {self._limits.connect:g} s") from None
        except httpx.ConnectError as error:
            raise Refused(502, "unreachable", f"{host} cannot be reached: {str(error) or 'no connection'}") from None
        except httpx.TimeoutException:
            raise Refused(504, "silent", f"{host} sent nothing for {self._limits.idle:g} s") from None
        except httpx.TransportError as error:
            message = f"{host} broke off: {str(error) or type(error).__name__}"
            raise Refused(502, "broken", Scrubber(endpoint.key).text(message)) from None

    def _timeouts(self) -> dict[str, float]:
        limits = self._limits
        return {"connect": limits.connect, "read": limits.idle, "write": limits.body_idle, "pool": limits.connect}


class _Metered:
    """The answer of one model: counts it while it passes, and charges it once."""

    def __init__(self, question: Question, candidate: Candidate, exchange: Exchange) -> None:
        self.api = question.route.api
        self.ending = Ending.LEFT
        """Until something else is known: whatever cancels an attempt, the agent has not got all of it."""
        self._question = question
        self._candidate = candidate
        self._exchange = exchange
        self._began = time.monotonic()
        self._status = 0
        self._reader = UsageReader(self.api, "")
        self._charging: asyncio.Task[None] | None = None

    async def read(self, response: httpx.Response) -> AsyncIterator[bytes]:
        self._status = response.status_code
        content_type = response.headers.get("content-type", "")
        self._reader = UsageReader(self.api, content_type)
        reader: UsageReader | None = self._reader
        has_length = "content-length" in response.headers
        if self._question.call is None:
            reader = None
        try:
            assert isinstance(response.stream, httpx.AsyncByteStream)
            async for piece in response.stream:  # `aiter_raw` adds its own work to every piece
                self._exchange.received += len(piece)
                if reader is not None and has_length:
                    reader.feed(piece)
                yield piece
                if reader is not None and not has_length:
                    reader.feed(piece)  # after the piece was sent
        except httpx.TransportError as error:
            raise Cut(str(error) or type(error).__name__) from None

    async def finish(self) -> None:
        """The answer is whole. May be called twice."""
        self.ending = Ending.WHOLE
        await self.charge()

    async def charge(self) -> None:
        """Charge the answer, once. What was begun goes on if this is cancelled, and can be awaited again."""
        call = self._question.call
        if call is None:
            return
        if self._charging is None:
            self._charging = asyncio.create_task(call.charge(self._candidate.choice, self.api, self._answer()))
        await asyncio.shield(self._charging)

    def _answer(self) -> Answer:
        ms = round((time.monotonic() - self._began) * 1000)
        exchange = self._exchange
        in_background = self.api is Api.OPENAI_RESPONSES and exchange.background.is_possible
        return Answer(
            self._status,
            exchange.sent,
            ms,
            self.ending,
            self._reader.measure(),
            is_opaque=exchange.is_compressed or in_background,
        )


async def _chained(held: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if held:
        yield held
    async for piece in pieces:
        yield piece
