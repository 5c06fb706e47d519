"""Multiplexes calls and their byte streams over one byte stream.

A call is one request to the guest, with up to four byte streams, each in both directions. A frame is a kind, a number
and a length, followed by that many bytes. Sending data uses up credit, and the reader grants more as it consumes data,
so neither side has to buffer more than was granted. Both sides use this module. It does not know what calls mean.
"""

import struct

GREETING = b"holdfast bridge 1\n"
"""The first bytes from the box."""
HEAD = struct.Struct(">BII")
"""Kind, number, length."""
LONGEST = 1 << 16
"""The longest payload of a frame in bytes."""
STREAMS = 4
"""How many byte streams a call has. Their numbers are the call's number times this, plus 0 to 3."""
FIRST_OWN = 1 << 29
"""The box begins calls from this number on: connections to its egress."""
LAST = (1 << 30) - 1

FIRST_CREDIT = 1 << 16
"""How many bytes may be sent on a stream before the first grant."""
MOST_CREDIT = 1 << 20
"""The largest window of a stream that is read quickly."""

PART = 1
"""A piece of a message; more follows. The number is that of the call."""
MESSAGE = 2
"""The last piece of a message. The first message of a call begins it."""
DATA = 3
"""The number is that of the stream."""
END = 4
"""No more data comes on this stream."""
STOP = 5
"""The receiver does not want more data on this stream."""
CREDIT = 6
"""Grants more bytes on this stream, as a number of four bytes."""
CLOSE = 7
"""The call is over for both sides. Cancels it if it is not done."""
PING = 8
PONG = 9
OPEN = 10
"""The box begins a call: a process connected to its egress."""
KINDS = frozenset(range(PART, OPEN + 1))

PING_SECONDS = 15.0
SILENCE_SECONDS = 60.0
"""A side that receives nothing for this long considers the other lost."""


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, number, len(payload)) + payload


def message_frames(call: int, message: bytes) -> bytes:
    """Returns a message as one or more frames."""
    pieces = []
    start = 0
    while len(message) - start > LONGEST:
        pieces.append(frame(PART, call, message[start : start + LONGEST]))
        start += LONGEST
    pieces.append(frame(MESSAGE, call, message[start:]))
    return b"".join(pieces)


class Window:
    """The receive window of a stream. It doubles each time that a whole window was consumed, up to a maximum.

    A stream that is not read stays small, which limits the memory of many streams.
    """

    __slots__ = ("_granted", "_size", "_taken", "_whole")

    def __init__(self) -> None:
        self._size = FIRST_CREDIT
        self._granted = FIRST_CREDIT
        """Granted but not yet used by the other side."""
        self._taken = 0
        """Consumed since the last grant."""
        self._whole = 0
        """Consumed since the window grew."""

    @property
    def outstanding(self) -> int:
        return self._granted

    def arrived(self, count: int) -> bool:
        """Returns whether the other side was allowed to send this much."""
        self._granted -= count
        return self._granted >= 0

    def taken(self, count: int) -> int:
        """Returns how many bytes to grant now that `count` were consumed, often 0."""
        self._taken += count
        self._whole += count
        if self._taken * 2 < self._size:
            return 0
        more, self._taken = self._taken, 0
        if self._whole >= self._size and self._size < MOST_CREDIT:
            more += self._size
            self._size *= 2
            self._whole = 0
        self._granted += more
        return more
