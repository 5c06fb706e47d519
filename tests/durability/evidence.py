"""What writers asked for, what was acknowledged, and whether a stream that was read back agrees. No effects here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

_SHOWN: Final = 8
"""How many cases of one kind of failure are told."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request to append, by one writer. Its messages are to be there all or none."""

    writer: str
    number: int
    """Which delivery of its writer it is, from 0."""
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    offset: str | None
    """Where the stream ended after the delivery; None where the answer does not say exactly that."""
    life: int
    """How often the server had been started by then."""


@dataclass(slots=True)
class Ledger:
    """The deliveries to one stream in the order in which they were begun, and the acknowledgements there are."""

    deliveries: list[Delivery] = field(default_factory=list)
    acknowledged: dict[Delivery, Acknowledgement] = field(default_factory=dict)

    @property
    def acknowledged_messages(self) -> int:
        return sum(len(delivery.messages) for delivery in self.acknowledged)

    @property
    def unknown(self) -> list[Delivery]:
        """Deliveries that nobody answered: they may be there whole, or not at all."""
        return [delivery for delivery in self.deliveries if delivery not in self.acknowledged]


def judge(ledger: Ledger, stored: Sequence[bytes]) -> list[str]:
    """What is wrong with a stream that reads `stored`, message by message. Nothing, one hopes."""
    origin = {
        message: (delivery, place) for delivery in ledger.deliveries for place, message in enumerate(delivery.messages)
    }
    counted = Counter(stored)
    position = {message: index for index, message in enumerate(stored)}
    return [
        *_tell("was never sent as it stands: torn, or somebody else's", _strangers(counted, origin)),
        *_tell("is there more than once", (f"{_name(m, origin)} ({n} times)" for m, n in counted.items() if n > 1)),
        *_tell("was acknowledged and is missing", _missing(ledger, position)),
        *_tell("is there in part", _torn(ledger, position)),
        *_tell("is out of its writer's order", _disordered(stored, origin)),
        *_tell("has an offset that does not fit its place", _misplaced(ledger, position)),
    ]


def compare(what: str, seen: Sequence[bytes], stored: Sequence[bytes]) -> list[str]:
    """How a reader's view differs from the stream: at the first place, which is the one that explains the rest."""
    for index, (mine, theirs) in enumerate(zip(seen, stored, strict=False)):
        if mine != theirs:
            return [f"{what} saw {_short(mine)} as message {index}, where the stream has {_short(theirs)}"]
    if len(seen) != len(stored):
        return [f"{what} saw {len(seen)} messages, where the stream has {len(stored)}"]
    return []


Origin = Mapping[bytes, tuple[Delivery, int]]


def _strangers(counted: Iterable[bytes], origin: Origin) -> Iterable[str]:
    return (_short(message) for message in counted if message not in origin)


def _missing(ledger: Ledger, position: Mapping[bytes, int]) -> Iterable[str]:
    for delivery, acknowledgement in ledger.acknowledged.items():
        if not any(message in position for message in delivery.messages):
            yield f"{_delivery(delivery)} (life {acknowledgement.life} of the server)"


def _torn(ledger: Ledger, position: Mapping[bytes, int]) -> Iterable[str]:
    for delivery in ledger.deliveries:
        places = [position[message] for message in delivery.messages if message in position]
        if places and len(places) < len(delivery.messages):
            yield f"{_delivery(delivery)}: {len(places)} of {len(delivery.messages)} messages"
        elif any(after != before + 1 for before, after in pairwise(places)):
            yield f"{_delivery(delivery)}: its messages do not stand together"


def _disordered(stored: Sequence[bytes], origin: Origin) -> Iterable[str]:
    last: dict[str, tuple[int, int]] = {}
    for message in stored:
        if message in origin:
            delivery, place = origin[message]
            here, before = (delivery.number, place), last.get(delivery.writer, (-1, -1))
            if here < before:
                yield f"{_name(message, origin)} comes after {before[0]}.{before[1]}"
            last[delivery.writer] = max(here, before)


def _misplaced(ledger: Ledger, position: Mapping[bytes, int]) -> Iterable[str]:
    """Offsets sort as text in the order of what they stand behind."""
    known = sorted(
        (position[delivery.messages[-1]], acknowledgement.offset, _delivery(delivery))
        for delivery, acknowledgement in ledger.acknowledged.items()
        if acknowledgement.offset is not None and delivery.messages[-1] in position
    )
    for (_, before, _), (_, after, name) in pairwise(known):
        if after <= before:
            yield f"{name}: {after} after {before}"


def _tell(what: str, cases: Iterable[str]) -> list[str]:
    found = list(cases)
    told = [f"{case} {what}" for case in found[:_SHOWN]]
    if len(found) > _SHOWN:
        told.append(f"and {len(found) - _SHOWN} more: {what}")
    return told


def _delivery(delivery: Delivery) -> str:
    return f"{delivery.writer}, delivery {delivery.number}"


def _name(message: bytes, origin: Origin) -> str:
    if message not in origin:
        return _short(message)
    delivery, place = origin[message]
    return f"{delivery.writer}, message {delivery.number}.{place}"


def _short(message: bytes) -> str:
    return repr(message if len(message) <= 80 else message[:60] + b" [...] " + message[-16:])[1:]
