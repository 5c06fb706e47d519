"""How one byte stream carries many: frames of calls and of the byte streams that belong to them.

A call is one request to the guest, with up to four byte streams of its own, each both ways. A frame is a kind, a number
and a length, then so many bytes. What carries bytes spends credit: who reads grants more as it takes them, so nobody
has to keep more than what was granted. Both sides use this module; it decides nothing about what calls mean.
"""

import struct

GREETING = b"holdfast bridge 1\n"
"""The first bytes from the box."""
HEAD = struct.Struct(">BII")
"""Kind, number, length."""
LONGEST = 1 << 16
"""Bytes of one frame's payload."""
STREAMS = 4
"""Byte streams of a call: its number times this, plus 0 to 3."""
FIRST_OWN = 1 << 29
"""Calls from here on are begun by the box: connections to its egress."""
LAST = (1 << 30) - 1

FIRST_CREDIT = 1 << 16
"""Bytes that may be sent on a stream before anything is granted."""
MOST_CREDIT = 1 << 20
"""What a stream that is read quickly grows to."""

PART = 1
"""A piece of a message, more follows. Number: of the call."""
MESSAGE = 2
"""The last piece of a message. The first message of a call begins it."""
DATA = 3
"""Number: of the stream."""
END = 4
"""Nothing more comes on this stream."""
STOP = 5
"""Nobody takes what comes on this stream any more."""
CREDIT = 6
"""So many bytes more may come on this stream: four bytes."""
CLOSE = 7
"""The call is over, for both. Hangs up where it was not done."""
PING = 8
PONG = 9
OPEN = 10
"""The box begins a call: somebody connected to its egress."""
KINDS = frozenset(range(PART, OPEN + 1))

PING_SECONDS = 15.0
SILENCE_SECONDS = 60.0
"""A side that hears nothing for so long takes the other for lost."""


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, number, len(payload)) + payload


def message_frames(call: int, message: bytes) -> bytes:
    """A message, in as many frames as it takes."""
    pieces = []
    start = 0
    while len(message) - start > LONGEST:
        pieces.append(frame(PART, call, message[start : start + LONGEST]))
        start += LONGEST
    pieces.append(frame(MESSAGE, call, message[start:]))
    return b"".join(pieces)


class Window:
    """What a reader has granted, and grants: twice as much each time that it has taken a whole window, up to the most.

    A stream that nobody reads stays small: that is what bounds the memory of many.
    """

    __slots__ = ("_granted", "_size", "_taken", "_whole")

    def __init__(self) -> None:
        self._size = FIRST_CREDIT
        self._granted = FIRST_CREDIT
        """Not yet used by the other side."""
        self._taken = 0
        """Since the last grant."""
        self._whole = 0
        """Since the window grew."""

    @property
    def outstanding(self) -> int:
        return self._granted

    def arrived(self, count: int) -> bool:
        """Whether the other side was allowed to send this."""
        self._granted -= count
        return self._granted >= 0

    def taken(self, count: int) -> int:
        """Bytes were taken out of the buffer: how much to grant now, often nothing."""
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
