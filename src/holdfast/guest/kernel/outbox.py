"""What a context said and its host has not confirmed: given out under a claim, for a time, and again once that is over.

Messages keep their order, so one claim is out at a time. A call stays claimed until it is answered, or its execution is
over: its host renews it, and an answer under a claim that has run out is refused. Decisions only; the clock is passed
in.
"""

import collections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_CALLS = 256
"""Calls of one context that wait for their answers."""
_REMEMBERED = 4096


class Said:
    """One message of a context."""

    __slots__ = ("call", "execution", "kind", "message")

    def __init__(self, document: "dict[str, Any]", message: bytes) -> None:
        self.kind = str(document.get("t"))
        self.call = str(document.get("id")) if self.kind in ("call", "cancel") else None
        self.execution = str(document.get("id" if self.kind == "done" else "e"))
        self.message = message


class Claimed:
    """A call that somebody has."""

    __slots__ = ("claim", "said", "until")

    def __init__(self, said: Said, claim: str, until: float) -> None:
        self.said = said
        self.claim = claim
        self.until = until


class Outbox:
    def __init__(self, seconds: float, make_claim: "Callable[[], str]") -> None:
        self._seconds = seconds
        self._make_claim = make_claim
        self._waiting: collections.deque[Said] = collections.deque()
        self._out: list[Said] = []
        self._claim = ""
        self._until = 0.0
        self._calls: dict[str, Claimed] = {}
        self._seen: collections.OrderedDict[str, None] = collections.OrderedDict()
        self.size = 0
        """Bytes that wait, or are out under a claim."""

    def add(self, document: "dict[str, Any]", message: bytes) -> "str | None":
        """Take a message of the context. Returns why it is refused; None: it is not."""
        said = Said(document, message)
        if said.kind == "call":
            assert said.call is not None
            if said.call in self._seen:
                return "again"
            if len(self._calls) + sum(each.kind == "call" for each in (*self._waiting, *self._out)) >= MOST_CALLS:
                return "full"
            self._seen[said.call] = None
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        self._waiting.append(said)
        self.size += len(message)
        return None

    def take(self, now: float, room: int) -> "tuple[str, list[bytes]] | None":
        """The next messages, under a new claim; None where there are none, or others are out."""
        self.expire(now)
        if self._out or not self._waiting:
            return None
        taken = 0
        while self._waiting and (not self._out or taken + len(self._waiting[0].message) <= room):
            said = self._waiting.popleft()
            taken += len(said.message)
            self._out.append(said)
        self._claim = self._make_claim()
        self._until = now + self._seconds
        return self._claim, [said.message for said in self._out]

    def confirm(self, claim: str, now: float) -> bool:
        """They have arrived. False: the claim is not the one that is out."""
        if not self._out or claim != self._claim:
            return False
        for said in self._out:
            self.size -= len(said.message)
            if said.kind == "call":
                assert said.call is not None
                self._calls[said.call] = Claimed(said, claim, now + self._seconds)
            elif said.kind == "cancel":
                self._calls.pop(str(said.call), None)
            elif said.kind == "done":
                for id, claimed in list(self._calls.items()):
                    if claimed.said.execution == said.execution:
                        del self._calls[id]  # nobody answers it any more
        self._out = []
        return True

    def renew(self, call: str, claim: str, now: float) -> bool:
        claimed = self._calls.get(call)
        if claimed is None or claimed.claim != claim:
            return False
        claimed.until = now + self._seconds
        return True

    def answer(self, call: str, claim: str, now: float) -> bool:
        """False: it is not this claim's to answer."""
        self.confirm(claim, now)  # who answers has it
        claimed = self._calls.get(call)
        if claimed is None or claimed.claim != claim:
            return False
        del self._calls[call]
        return True

    def expire(self, now: float) -> None:
        """What was not confirmed or renewed in time is for whoever asks next."""
        if self._out and now >= self._until:
            self._waiting.extendleft(reversed(self._out))
            self._out = []
        for id, claimed in list(self._calls.items()):
            if now >= claimed.until:
                del self._calls[id]
                self._waiting.append(claimed.said)
                self.size += len(claimed.said.message)

    def next_end(self) -> "float | None":
        """When the next claim runs out."""
        ends = [claimed.until for claimed in self._calls.values()]
        if self._out:
            ends.append(self._until)
        return min(ends) if ends else None

    def printed(self) -> "list[Said]":
        """Output that nobody has confirmed: all that the context does not say again to another host."""
        return [said for said in (*self._out, *self._waiting) if said.kind == "out"]

    @property
    def is_empty(self) -> bool:
        return not self._out and not self._waiting
