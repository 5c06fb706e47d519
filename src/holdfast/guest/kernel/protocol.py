"""The protocol between host and context: messages of a small JSON document and a body of bytes. Both sides use this
module.

A message is the length of its document, the length of its body, the document, and the body. `t` in the document is its
type. A reader bounds the size of the messages that it accepts.
"""

import struct

from holdfast.guest.kernel import json_codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = struct.Struct(">II")
LONGEST_DOCUMENT = 1 << 20
LONGEST_BODY = 1 << 30
"""For messages to a context: variables may be large, and use its own memory."""
_LARGE = 1 << 20
PIECE = 1 << 18
"""The largest output of one message, and the size of one read."""


class InvalidMessage(Exception):
    """The other side violated the protocol."""


def pack(document: "dict[str, Any]", body: bytes = b"") -> bytes:
    return pack_head(document, len(body)) + body


def pack_head(document: "dict[str, Any]", size: int) -> bytes:
    """A message without its body, which has this size and follows."""
    encoded = json_codec.dumps(document).encode()
    if len(encoded) > LONGEST_DOCUMENT:
        raise InvalidMessage("a message of %d bytes" % len(encoded))
    return HEAD.pack(len(encoded), size) + encoded


class Unpacker:
    """Turns received bytes into messages. A large body is a bytearray, which only the caller uses."""

    def __init__(self, longest_body: int = LONGEST_BODY) -> None:
        self._longest = longest_body
        self._held = bytearray()
        self._start = 0

    def take(self, data: "bytes | bytearray | memoryview") -> "list[tuple[dict[str, Any], bytes]]":
        self._held += data
        found = []
        while True:
            message = self._next()
            if message is None:
                break
            found.append(message)
        if self._start:
            del self._held[: self._start]
            self._start = 0
        return found

    def _next(self) -> "tuple[dict[str, Any], bytes] | None":
        start = self._start
        if len(self._held) - start < HEAD.size:
            return None
        length, body = HEAD.unpack_from(self._held, start)
        if length > LONGEST_DOCUMENT or body > self._longest:
            raise InvalidMessage("a message of %d and %d bytes" % (length, body))
        start += HEAD.size
        end = start + length + body
        if len(self._held) < end:
            return None
        with memoryview(self._held) as held:
            try:
                document = json_codec.loads(bytes(held[start : start + length]))
            except (ValueError, RecursionError):
                raise InvalidMessage("a message that is not JSON") from None
            is_large = body >= _LARGE and end == len(self._held)
            content = b"" if is_large else bytes(held[start + length : end])
        if not isinstance(document, dict) or not isinstance(document.get("t"), str):
            raise InvalidMessage("a message without a type")
        if is_large:  # nothing follows it: hand the buffer over without a copy
            taken, self._held, end = self._held, bytearray(), 0
            del taken[: start + length]
            content = taken  # type: ignore[assignment] # used like bytes
        self._start = end
        return document, content

    @property
    def missing(self) -> int:
        """The number of missing bytes of the present message, as far as it is known."""
        if len(self._held) < HEAD.size:
            return 0
        length, body = HEAD.unpack_from(self._held)
        return max(0, HEAD.size + int(length) + int(body) - len(self._held))
