"""One connection of a box: reads its requests, checks them against the policy, and forwards them.

Every request is checked by itself, so redirects need no special handling. Requests are rewritten and sent to the
address that was checked.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Protocol

from holdfast.api.box.network import Network
from holdfast.api.errors.secrets import SecretMissing
from holdfast.api.secrets import SecretAction
from holdfast.egress import addresses
from holdfast.egress.bound.answers import Answers
from holdfast.egress.bound.rules import Bound, Refusal, choose, forms, with_secrets
from holdfast.egress.bound.tls import HandshakeFailed, TlsSocket
from holdfast.egress.box_access import BoxAccess
from holdfast.egress.http_body import relay_body
from holdfast.egress.http_head import (
    UNTIL_CLOSE,
    BadHead,
    Body,
    Request,
    Response,
    host_name,
    parse_path_request,
    parse_request,
    parse_response,
    parse_tunnelled_request,
)
from holdfast.egress.packages import mirror as package_mirror
from holdfast.egress.packages.answers import FileAnswer, PageAnswer
from holdfast.egress.packages.cache import Damaged, PackageFile
from holdfast.egress.packages.mirror import PackageMirror, PackageRequest
from holdfast.egress.policy import CONNECT, Target
from holdfast.egress.records import Decision
from holdfast.egress.route import Denied, Failed, Route
from holdfast.egress.sockets import Ended, ReadsNoMore, Socket, Wire
from holdfast.egress.tls_hello import TLS_BEGINS, NotTls, read_hello

_REPEATABLE: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
_LONGEST_METHOD: Final = 32
BLOCKED: Final = "Blocked by the network policy of this box"
_LONGEST_REASON: Final = 300
NO_NETWORK: Final = "this box has no network"
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


class AnswerFilter(Protocol):
    """What becomes of an answer on its way to the box."""

    def head(self, response: Response) -> Response: ...

    async def body(self, source: Wire, to: Wire, body: Body) -> None:
        """Relay a body. Raises `BadHead` and `Ended`."""

    async def stream(self, source: Wire, to: Wire) -> None:
        """Relay everything until the end."""


@dataclass(slots=True)
class _Upstream:
    target: Target
    wire: Wire
    in_tls: bool


class ProxyConnection:
    """Runs as one task, owned by the proxy. `end` cancels it and records why."""

    def __init__(self, access: BoxAccess, client: socket.socket) -> None:
        self._access = access
        self._limits = access.limits
        self._socket = Socket(client, _Meter(self, self._sent))
        self._client: Wire = self._socket
        """The box: the socket itself, or TLS over it for a host that a secret is bound to."""
        self._answers: AnswerFilter | None = None
        """Keeps secrets out of answers, inside such TLS. Keeps packages."""
        self._trust: ssl.SSLContext | None = None
        """By what the server is verified, if the proxy speaks TLS to it."""
        self._is_for_packages = False
        """Whether all requests are for packages, by paths."""
        self._method: str | None = None
        """The method of a request inside such TLS."""
        self._with_secrets = ""
        """The secrets in it, for its record."""
        self._route = Route(access, _Meter(self, self._received), self._note)
        self._upstream: _Upstream | None = None
        self._answered = False
        """Whether a byte of the answer to the current request was sent to the box."""
        self.target: Target | None = None
        """The current target, which is checked again when the policy changes."""
        self.is_outside = access.guest_api is None
        """Whether this goes outside. Until the first request it may be for the guest API, which no policy limits."""
        self._decision: Decision | None = None
        self._began = monotonic()
        self._sent_bytes = self._received_bytes = 0
        self._moved_at = monotonic()
        self._quiet = 0.0
        self._ends_at = 0.0
        self._ending = False
        self._ended_why: str | None = None
        self._resting = False
        self._task: asyncio.Task[None] | None = None
        self._expect(self._limits.head, self._limits.head)

    # --- deadlines, enforced by the proxy's sweep ---

    def start(self) -> asyncio.Task[None]:
        """Serve the connection. The caller awaits the task, and calls `discard` after it."""
        self._task = asyncio.create_task(self.run(), name=f"egress of {self._access.box}")
        return self._task

    def overdue(self, now: float) -> str | None:
        """Returns why this has to end now, or None."""
        if now - self._moved_at > self._quiet:
            return f"nothing moved for {self._quiet:g} s"
        if now > self._ends_at:
            return "it took too long"
        return None

    def _expect(self, quiet: float, whole: float) -> None:
        self._moved_at = monotonic()
        self._quiet = quiet
        self._ends_at = self._moved_at + whole

    def end(self, why: str | None) -> None:
        """Reset the connection and record `why`. None records nothing."""
        if not self._ending and self._task is not None:
            self._ending = True
            self._ended_why = why
            self._task.cancel()

    def end_overdue(self, why: str) -> None:
        """End an overdue connection. Between two requests it is just closed, as servers do."""
        if self._resting:
            self._client.close()
        self.end(None if self._resting else why)

    # --- bytes ---

    def moved(self, many: int) -> float:
        self._moved_at = monotonic()
        return self._access.spend(many)

    @property
    def piece(self) -> int:
        return self._access.piece

    def _sent(self, many: int) -> None:
        self._sent_bytes += many
        self._access.sent += many

    def _received(self, many: int) -> None:
        self._received_bytes += many
        self._access.received += many

    # --- running ---

    async def run(self) -> None:
        try:
            if await self._goes_outside():
                serve = self._one_package_request if self._is_for_packages else self._one_request
                while await serve():
                    pass
                self._client.close()
        except asyncio.CancelledError:
            self._note_end(self._ended_why)
            raise
        except Ended:
            pass
        finally:
            self.discard()

    async def _goes_outside(self) -> bool:
        """Returns False for a request to the guest API, which is served here, and for a refused one."""
        if self._access.guest_api is None and self._access.packages is None:
            return True
        # Requests to a proxy have a whole URL or CONNECT. Requests to a server have a path.
        first = await self._socket.peek(b" ", _LONGEST_METHOD)
        if first.partition(b" ")[2][:1] == b"/":
            self._is_for_packages = self._access.packages is not None and await self._asks_for(package_mirror.PATH)
        if first.partition(b" ")[2][:1] == b"/" and not self._is_for_packages and self._access.guest_api is not None:
            self._quiet = self._ends_at = math.inf  # the guest API has its own limits
            await self._access.guest_api(self._access.box, *self._socket.hand_over())
            return False
        if self._access.allowance.mode is Network.NONE:
            self._note(False, NO_NETWORK)
            return False
        self.is_outside = True
        return True

    async def _asks_for(self, prefix: str) -> bool:
        """Returns whether the first request is for a path below this one."""
        wanted = prefix.encode()
        while True:
            path = self._socket.ahead.partition(b" ")[2]
            if not wanted.startswith(path[: len(wanted)]):
                return False
            if len(path) >= len(wanted):
                return True
            if not await self._socket.more():
                return False

    def discard(self) -> None:
        """Close everything. Also works for a task that was cancelled before it started. Twice has no effect."""
        self._complete()
        self._drop_upstream()
        # A client that was not fully served must not take a partial answer for the whole.
        self._client.reset()

    async def _one_request(self) -> bool:
        """Serves one request. Returns whether another may follow."""
        self._begin()
        try:
            head = await self._next_head()
            if head is None:
                return False
            request = parse_request(head)
        except BadHead as problem:
            self._note(False, f"bad request: {problem}")
            await self._answer(400, f"the proxy cannot handle this request: {problem}\n", drain=True)
            return False
        self.target = Target(request.host, request.port, request.method)
        if request.method == CONNECT:
            await self._connect(self.target)
            return False
        if self._access.packages is not None:
            try:
                asked = self._access.packages.by_name(request)
            except package_mirror.NoRegistry as problem:
                return await self._refuse_package(request, str(problem))
            if asked is not None:
                return await self._serve_package(asked, self._access.packages)
        return await self._exchange(request, self.target)

    # --- packages ---

    async def _one_package_request(self) -> bool:
        """Serves one request for a path of the package mirror. Returns whether another may follow."""
        packages = self._access.packages
        assert packages is not None
        self._begin()
        try:
            head = await self._next_head()
            if head is None:
                return False
            request = parse_path_request(head, "", 0)
            if request.version != b"HTTP/1.1":
                raise BadHead("packages need HTTP/1.1")
        except BadHead as problem:
            self._note(False, f"bad request: {problem}")
            await self._answer(400, f"the proxy cannot handle this request: {problem}\n", drain=True)
            return False
        try:
            asked = packages.by_path(request)
        except package_mirror.NoRegistry as problem:
            return await self._refuse_package(request, str(problem))
        return await self._serve_package(asked, packages)

    async def _refuse_package(self, request: Request, why: str) -> bool:
        self._note(False, why)
        keep = request.body.empty and request.keep_alive
        await self._answer(403, f"{why}\n", drain=not keep, keep=keep)
        return keep

    async def _serve_package(self, asked: PackageRequest, packages: PackageMirror) -> bool:
        """Serve a request to a registry from the cache, or from the registry over TLS."""
        target = self.target = Target(asked.origin.host, asked.origin.port, asked.request.method)
        if not asked.is_public:
            return await self._ask_registry(asked.request, target, packages, None)
        if not asked.is_file:
            return await self._ask_registry(asked.for_index(), target, packages, PageAnswer(packages, asked))
        ruling = self._access.judge(target)
        kept = packages.cache.find(asked.url, packages.digest(asked.url)) if ruling.allowed else None
        if kept is not None:
            self._note(True, f"{ruling.why}; from the package cache")
            return await self._send_kept(asked.request, packages, kept)
        return await self._ask_registry(asked.anew(), target, packages, FileAnswer(packages, asked))

    async def _ask_registry(
        self, request: Request, target: Target, packages: PackageMirror, answer: PageAnswer | FileAnswer | None
    ) -> bool:
        self._trust, self._answers = await asyncio.to_thread(lambda: packages.trust), answer
        try:
            return await self._exchange(request, target)
        finally:
            self._trust = self._answers = None
            if answer is not None:
                answer.close()

    async def _send_kept(self, request: Request, packages: PackageMirror, kept: PackageFile) -> bool:
        self._answered = True
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {kept.size}\r\n"
            f"X-Holdfast-Cache: hit\r\n{'' if request.keep_alive else 'Connection: close' + chr(13) + chr(10)}\r\n"
        )
        await self._client.write(head.encode())
        meter = _Meter(self, self._received)
        try:
            async for piece in packages.cache.read(kept):
                await self._client.write(piece)
                if (delay := meter.count(len(piece))) > 0:
                    await asyncio.sleep(delay)
        except Damaged as problem:
            self._note(True, str(problem), failed=True)
            raise Ended(str(problem)) from None
        return request.keep_alive

    async def _next_head(self) -> bytes | None:
        """Returns the head of the next request, or None if there is none. Raises `BadHead`."""
        self._expect(self._limits.between, self._limits.between)
        self._resting = True
        if not self._client.ahead and not await self._client.more():
            return None
        self._resting = False
        self._expect(self._limits.head, self._limits.head)
        self._began = monotonic()
        head = await self._client.head(self._limits.head_size)
        if head is not None:
            await self._access.pace()
            self._expect(self._limits.idle, self._limits.lifetime)
        return head

    def _begin(self, target: Target | None = None) -> None:
        self._complete()
        self.target = target
        self._method = None
        self._with_secrets = ""
        self._answered = False
        self._began = monotonic()
        self._sent_bytes = self._received_bytes = 0

    async def _answer(
        self, status: int, text: str, *, drain: bool, keep: bool = False, reason: str | None = None
    ) -> None:
        """`reason` goes into the status line, which is all that clients show of the answer to CONNECT."""
        body = text.encode()
        usual = {400: "Bad Request", 403: "Forbidden", 413: "Content Too Large", 502: "Bad Gateway"}[status]
        reason = _in_one_line(reason) if reason else usual
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            f"X-Holdfast-Egress: {'denied' if status == 403 else 'failed'}\r\n"
            f"{'' if keep else 'Connection: close' + chr(13) + chr(10)}\r\n"
        )
        await self._client.write(head.encode() + body)
        if drain:
            self._client.finish()
            await self._client.drain()

    # --- plain HTTP ---

    async def _exchange(self, request: Request, target: Target) -> bool:
        try:
            return await self._carry(request, target)
        except Denied as denied:
            self._drop_upstream()
            self._note(False, str(denied))
            if self._answered:
                return False
            keep = request.body.empty and request.keep_alive
            await self._answer(403, self._access.explain(target, str(denied)), drain=not request.body.empty, keep=keep)
            return keep
        except (Failed, BadHead) as failed:
            self._drop_upstream()
            if self._answered:
                raise Ended(str(failed)) from None
            status = failed.status if isinstance(failed, Failed) else 400
            if isinstance(failed, BadHead):
                self._note(False, f"bad request: {failed}")
            keep = request.body.empty and request.keep_alive
            await self._answer(status, f"{failed}\n", drain=not request.body.empty, keep=keep)
            return keep

    async def _carry(self, request: Request, target: Target) -> bool:
        upstream, rule, used = await self._upstream_for(target)
        self._note(True, rule)
        try:
            return await self._both_ways(request, upstream)
        except _NoAnswer as nothing:
            # A server may close an idle connection just as we reuse it. There was no answer yet, so retry once.
            if not used or not request.body.empty or request.method not in _REPEATABLE:
                raise Failed(502, f"{target}: {nothing}") from None
        self._drop_upstream()
        wire, _ = await self._open(target)
        self._upstream = _Upstream(target, wire, self._trust is not None)
        try:
            return await self._both_ways(request, wire)
        except _NoAnswer as nothing:
            raise Failed(502, f"{target}: {nothing}") from None

    async def _upstream_for(self, target: Target) -> tuple[Wire, str, bool]:
        """Returns a connection, the rule that allows it, and whether the connection was used before."""
        before, self._upstream = self._upstream, None
        if before is not None:
            same = (before.target.host, before.target.port) == (target.host, target.port)
            same = same and before.in_tls == (self._trust is not None)
            ruling = self._access.judge(target)
            if same and ruling.allowed and not before.wire.stale():
                self._upstream = before
                return before.wire, ruling.why, True
            before.wire.close()
        wire, rule = await self._open(target)
        self._upstream = _Upstream(target, wire, self._trust is not None)
        return wire, rule, False

    async def _open(self, target: Target) -> tuple[Wire, str]:
        """Returns a connection to the target, in TLS if that is verified, and the rule that allows it."""
        socket, rule = await self._route.reach(target)
        if self._trust is None:
            return socket, rule
        wire = TlsSocket(socket, self._trust, server_name=target.host)
        try:
            await wire.handshake(self._limits.connect)
        except HandshakeFailed as failed:
            wire.reset()
            self._note(True, f"{rule}; {failed}", failed=True)
            raise Failed(502, f"cannot connect to {target}: {failed}") from None
        except BaseException:
            wire.reset()
            raise
        return wire, rule

    async def _both_ways(self, request: Request, upstream: Wire) -> bool:
        try:
            await upstream.write(request.to_bytes(80 if self._trust is None else 443))
        except Ended as ended:
            raise _NoAnswer(str(ended)) from None
        if request.body.empty:
            return await self._receive(request, upstream)
        receiver = asyncio.create_task(self._receive(request, upstream))
        sender = asyncio.create_task(self._send_body(request, upstream))
        try:
            await asyncio.wait((receiver, sender), return_when=asyncio.FIRST_COMPLETED)
            if not receiver.done():
                await sender  # raises what was wrong with the body
            keep = await receiver
            # If the answer came before the whole request was sent, the rest would be read as the next request.
            return keep and sender.done() and sender.result()
        finally:
            for task in (receiver, sender):
                task.cancel()
            await asyncio.gather(receiver, sender, return_exceptions=True)

    async def _send_body(self, request: Request, upstream: Wire) -> bool:
        """Returns whether the whole body was sent. Raises `Failed`, `BadHead` and `Ended`."""
        limit, total = self._limits.request_body, 0
        window_at, window_sent = monotonic(), self._sent_bytes

        def allow(size: int) -> None:
            nonlocal total
            total += size
            if total > limit:
                self._note(False, f"the request's body is longer than {limit} bytes")
                raise Failed(413, f"the request's body is longer than {limit} bytes\n")

        async def watch() -> None:
            nonlocal window_at, window_sent
            while True:
                await asyncio.sleep(self._limits.slow_window)
                now, sent = monotonic(), self._sent_bytes
                # If the server or our own limit holds the box back, the box is not slow.
                if sent - window_sent < self._limits.slowest * (now - window_at) and self._client.waiting:
                    self.end("the request's body arrives too slowly")
                window_at, window_sent = now, sent

        watching = asyncio.create_task(watch())
        try:
            await relay_body(self._client, upstream, request.body, allow)
        except ReadsNoMore:
            return False  # the server may have answered already, probably with a refusal
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return True

    async def _receive(self, request: Request, upstream: Wire) -> bool:
        while True:
            try:
                head = await upstream.head(self._limits.head_size)
                if head is None:
                    raise _NoAnswer("the server closed without an answer")
                response = parse_response(head, request.method)
                if self._answers is not None:
                    response = self._answers.head(response)
            except BadHead as problem:
                raise Failed(502, f"the server's answer is invalid: {problem}") from None
            except Ended as ended:
                if self._answered:
                    raise
                raise _NoAnswer(str(ended)) from None
            if response.status >= 200 or response.status == 101:
                break
            if request.version == b"HTTP/1.1":
                await self._client.write(response.to_bytes(last=False))
        if response.status == 101 and request.upgrade is None:
            raise Failed(502, "the server changed the protocol without a request")
        keep = request.keep_alive and response.body != UNTIL_CLOSE
        self._answered = True
        await self._client.write(response.to_bytes(last=not keep))
        if response.status == 101:
            await self._tunnel(upstream)
            return False
        try:
            if self._answers is None:
                await relay_body(upstream, self._client, response.body, _anything)
            else:
                await self._answers.body(upstream, self._client, response.body)
        except BadHead as problem:
            raise Ended(str(problem)) from None
        if not response.keep_alive:
            self._drop_upstream()
        return keep

    # --- CONNECT ---

    async def _connect(self, target: Target) -> None:
        if self._access.bound_at(target):
            await self._serve_bound(target)
            return
        established = False
        try:
            upstream, rule = await self._route.reach(target)
            self._upstream = _Upstream(target, upstream, in_tls=False)
            established = True
            await self._client.write(_ESTABLISHED)
            if self._access.allowance.mode is Network.ALLOW:
                await self._check_name(target)
                self._note(True, rule)
                await self._tunnel(upstream)
            else:
                # Everything public is allowed, so this may not be TLS, and the server may send first.
                self._note(True, rule)
                await self._tunnel(upstream, before=lambda: self._check_name_of_tls(target))
        except Denied as denied:
            self._note(False, str(denied))
            if established:
                self._client.reset()  # inside the tunnel, an answer would look like the server's
                return
            why = f"{BLOCKED}: {denied}"
            await self._answer(403, self._access.explain(target, str(denied)), drain=True, reason=why)
        except Failed as failed:
            await self._answer(failed.status, f"{failed}\n", drain=True, reason=f"Bad Gateway: {failed}")

    async def _check_name(self, target: Target) -> None:
        """Raises `Denied` unless the tunnel carries TLS for the allowed name."""
        self._expect(self._limits.head, self._limits.head)
        try:
            while (hello := read_hello(self._client.ahead)) is None:
                if not await self._client.more():
                    raise NotTls("the connection ended before a ClientHello")
            name = None if hello.name is None else host_name(hello.name)
        except (NotTls, BadHead) as problem:
            raise Denied(f"a tunnel to {target.host} is for TLS: {problem}") from None
        self._expect(self._limits.idle, self._limits.lifetime)
        literal = addresses.refusal(target.host) != "no address"
        if name != (None if literal else target.host):
            raise Denied(f"a tunnel to {target.host} asks for {name or 'no name'} inside (SNI)")

    async def _check_name_of_tls(self, target: Target) -> None:
        """Raises `Denied` if the tunnel carries TLS for another name."""
        if (self._client.ahead or await self._client.more()) and self._client.ahead[0] == TLS_BEGINS:
            await self._check_name(target)

    async def _tunnel(self, upstream: Wire, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Relays in both directions until both have ended. Awaits `before` before it sends anything of the box."""

        async def one_way(source: Wire, to: Wire) -> None:
            if self._answers is None or source is self._client:
                await source.pump(to)
            else:
                await self._answers.stream(source, to)
            to.finish()

        async def send() -> None:
            if before is not None:
                await before()
            await one_way(self._client, upstream)

        sending = asyncio.create_task(send())
        try:
            receiving = asyncio.create_task(one_way(upstream, self._client))
            try:
                await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_EXCEPTION)
                for task in (sending, receiving):
                    if task.done():
                        task.result()
            finally:
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    # --- hosts that a secret is bound to ---

    async def _serve_bound(self, target: Target) -> None:
        """Serve a tunnel to a host that a secret is bound to: TLS ends here, and every request is checked."""
        secrets = self._access.secrets
        assert secrets is not None
        self._drop_upstream()
        await self._client.write(_ESTABLISHED)
        inside: TlsSocket | None = None
        try:
            await self._check_name(target)
            certified, self._trust = await asyncio.to_thread(secrets.contexts, target.host)
            inside = TlsSocket(self._socket, certified)
            await inside.handshake(self._limits.head)
        except Denied as denied:
            self._refuse(target, str(denied))
            self._client.reset()
            return
        except HandshakeFailed as failed:
            self._note(False, f"the box does not accept the certificate for {target.host}: {failed}")
            self._client.reset()
            return
        self._client = inside
        while await self._one_bound_request(target):
            pass
        self._client.close()

    async def _one_bound_request(self, target: Target) -> bool:
        """Serves one request inside TLS. Returns whether another may follow."""
        self._begin(target)
        self._answers = Answers(())
        try:
            head = await self._next_head()
            if head is None:
                return False
            request = parse_tunnelled_request(head, target.host, target.port)
        except BadHead as problem:
            self._refuse(target, f"bad request: {problem}")
            await self._answer(400, f"the proxy cannot handle this request: {problem}\n", drain=True)
            return False
        self._method = request.method
        try:
            secrets, bound = self._access.secrets, self._access.bound_at(target)
            if secrets is None or not bound:
                raise Refusal(f"the secret that was bound to {target.host} is no longer there", "")
            chosen = choose(bound, request.method, request.path, request.headers)
            values = secrets.values(bound)
        except (Refusal, SecretMissing) as refusal:
            self._refuse(target, str(refusal))
            await self._answer(403, f"{BLOCKED}: {refusal}\n", drain=True, reason=f"{BLOCKED}: {refusal}")
            return False
        self._answers = Answers(forms(bound, values))
        for each in chosen:
            secrets.note(each.use.name, SecretAction.USED, target.host)
        self._with_secrets = _names(chosen)
        return await self._exchange(with_secrets(request, chosen, values), target)

    def _refuse(self, target: Target, why: str) -> None:
        """Record a refused use of the secrets of a host."""
        self._note(False, why)
        if self._access.secrets is not None:
            for each in self._access.bound_at(target):
                self._access.secrets.note(each.use.name, SecretAction.REFUSED, target.host, why[:_LONGEST_REASON])

    # --- records ---

    def _note(self, allowed: bool, why: str, *, failed: bool = False) -> None:
        """Records a decision. The last one of a request counts."""
        self._complete()
        host, port, method = (self.target.host, self.target.port, self.target.method) if self.target else ("", 0, "")
        if allowed and self._with_secrets:
            why = f"{why}; with {self._with_secrets}"
        method = self._method or method
        self._decision = self._access.record(host, port, method, allowed, why, failed=failed)

    def _note_end(self, why: str | None) -> None:
        if why is not None:
            self._note(False, why)

    def _complete(self) -> None:
        decision, self._decision = self._decision, None
        if decision is not None:
            decision.sent, decision.received = self._sent_bytes, self._received_bytes
            decision.ms = int((monotonic() - self._began) * 1000)
            self._sent_bytes = self._received_bytes = 0
            self._access.records.complete(decision)

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.wire.close()


class _NoAnswer(Exception):
    """The server closed the connection without an answer."""


class _Meter:
    """Counts what is read from one side of a connection."""

    def __init__(self, connection: ProxyConnection, count: Callable[[int], None]) -> None:
        self._connection = connection
        self._count = count

    @property
    def piece(self) -> int:
        return self._connection.piece

    def count(self, many: int) -> float:
        self._count(many)
        return self._connection.moved(many)


def _names(bound: Iterable[Bound]) -> str:
    return ", ".join(f"secret {each.use.name}" for each in bound)


def _in_one_line(text: str) -> str:
    """Returns the text without characters that a status line may not contain."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)[:_LONGEST_REASON]


def _anything(size: int) -> None:
    """Allows answers of any length. The lifetime limits them."""
