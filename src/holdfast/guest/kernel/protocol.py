"""How host and context talk: messages, each a small JSON document with a body of bytes. Both sides use this module.

A message is the length of its document, the length of its body, the document, the body. The document's `t` says what
it is. What a side takes is bounded by what it says when it reads: nobody keeps more than that for the other.
"""

import struct

from holdfast.guest.kernel import json_codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = struct.Struct(">II")
LONGEST_DOCUMENT = 1 << 20
LONGEST_BODY = 1 << 30
"""Towards a context: variables may be large, and it is theirs to have room for them."""
_LARGE = 1 << 20
PIECE = 1 << 18
"""Bytes of output in one message, at most; and what is read at once."""


class Garbage(Exception):
    """The other side does not keep to this."""


def pack(document: "dict[str, Any]", body: bytes = b"") -> bytes:
    return pack_head(document, len(body)) + body


def pack_head(document: "dict[str, Any]", size: int) -> bytes:
    """A message without its body, which has that size and follows."""
    told = json_codec.dumps(document).encode()
    if len(told) > LONGEST_DOCUMENT:
        raise Garbage("a message of %d bytes" % len(told))
    return HEAD.pack(len(told), size) + told


class Unpacker:
    """Takes bytes as they come and gives whole messages. A large body is a bytearray, and whoever gets it has it to
    himself."""

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
        told, body = HEAD.unpack_from(self._held, start)
        if told > LONGEST_DOCUMENT or body > self._longest:
            raise Garbage("a message of %d and %d bytes" % (told, body))
        start += HEAD.size
        end = start + told + body
        if len(self._held) < end:
            return None
        with memoryview(self._held) as held:
            try:
                document = json_codec.loads(bytes(held[start : start + told]))
            except (ValueError, RecursionError):
                raise Garbage("a message that is no JSON") from None
            is_large = body >= _LARGE and end == len(self._held)
            content = b"" if is_large else bytes(held[start + told : end])
        if not isinstance(document, dict) or not isinstance(document.get("t"), str):
            raise Garbage("a message that says nothing")
        if is_large:  # nothing follows it: it is handed over as it is, and not copied
            taken, self._held, end = self._held, bytearray(), 0
            del taken[: start + told]
            content = taken  # type: ignore[assignment] # bytes to whoever reads them
        self._start = end
        return document, content

    @property
    def missing(self) -> int:
        """Bytes that the message is short of which has begun to come, as far as that can be told."""
        if len(self._held) < HEAD.size:
            return 0
        told, body = HEAD.unpack_from(self._held)
        return max(0, HEAD.size + int(told) + int(body) - len(self._held))
