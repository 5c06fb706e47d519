"""One gRPC service of the counterpart: handlers by the name of their method; the other methods are unimplemented.

Handlers are plain: a request in, a response out, or a generator of responses. Faults and credentials are seen to here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Stream

from holdfast.testing.modal.faults import Faults, begin, cut, refuse

Unary = Callable[[Any], Awaitable[Any]]
Streaming = Callable[[Any], AsyncIterator[Any]]
Incoming = Callable[[AsyncIterator[Any]], Awaitable[Any]]
Check = Callable[[str, Mapping[str, Any]], None]
"""Raises `GRPCError` for a caller that may not call a method with this metadata."""


class Service:
    """A servable of grpclib."""

    def __init__(self, base: type, handlers: Mapping[str, Any], faults: Faults, check: Check) -> None:
        """`base` is the generated class of the service."""
        self._base = base
        self._handlers = handlers
        self._faults = faults
        self._check = check
        self.calls: list[str] = []
        """The method of every call."""
        self._open: set[Stream[Any, Any]] = set()

    def __mapping__(self) -> dict[str, Handler]:
        async def nothing(self: object, stream: object) -> None:
            raise NotImplementedError

        names = getattr(self._base, "__abstractmethods__", ())
        generated = type("Generated", (self._base,), dict.fromkeys(names, nothing))()
        found: dict[str, Handler] = generated.__mapping__()
        return {path: self._wrap(path.rpartition("/")[2], handler) for path, handler in found.items()}

    def cut(self) -> None:
        """Cut the connections of all calls that are being answered."""
        for stream in list(self._open):
            cut(stream)

    def _wrap(self, name: str, handler: Handler) -> Handler:
        given = self._handlers.get(name)

        async def serve(stream: Stream[Any, Any]) -> None:
            self._open.add(stream)
            try:
                await answer(stream)
            finally:
                self._open.discard(stream)

        async def answer(stream: Stream[Any, Any]) -> None:
            self.calls.append(name)
            self._check(name, stream.metadata or {})
            if given is None:
                raise GRPCError(Status.UNIMPLEMENTED, f"the counterpart of Modal has no {name}")
            fault = self._faults.take(name)
            if handler.cardinality is Cardinality.STREAM_UNARY:
                await begin(fault)
                await stream.send_message(await given(_requests(stream)))
                return
            request = await stream.recv_message()
            await begin(fault)
            if handler.cardinality is Cardinality.UNARY_UNARY:
                made = await given(request)
                refuse(fault)
                await stream.send_message(made)
                return
            sent = 0
            async for each in given(request):
                if fault is not None and fault.cut_after is not None and sent >= fault.cut_after:
                    cut(stream)
                    return
                await stream.send_message(each)
                sent += 1

        return Handler(serve, handler.cardinality, handler.request_type, handler.reply_type)


async def _requests(stream: Stream[Any, Any]) -> AsyncIterator[Any]:
    async for each in stream:
        yield each
