"""The wire format between host and guest: one value per message, compact, and safe to parse from any sender.

Values are None, bools, integers, bytes, text, lists, and dicts with text keys. A message is its length in four bytes,
followed by the value. Not JSON, because importing it would take as long as the rest of the guest's start.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would slow down the start
    from typing import Any

LIMIT = 16 * 1024 * 1024
"""The longest message in bytes."""
_DEPTH = 16


class BadMessage(ValueError):
    """The bytes are not a valid value."""


def frame(value: "Any") -> bytes:
    """Returns a value as a complete message."""
    data = encode(value)
    if len(data) > LIMIT:
        raise BadMessage("a message of %d bytes is too long" % len(data))
    return len(data).to_bytes(4, "big") + data


def encode(value: "Any") -> bytes:
    if value is None:
        return b"0:n"
    if value is True:
        return b"0:t"
    if value is False:
        return b"0:f"
    if isinstance(value, int):
        data, kind = b"%d" % value, b"i"
    elif isinstance(value, bytes):
        data, kind = value, b"b"
    elif isinstance(value, str):
        data, kind = value.encode("utf-8", "surrogateescape"), b"s"
    elif isinstance(value, (list, tuple)):
        data, kind = b"".join([encode(each) for each in value]), b"l"
    elif isinstance(value, dict):
        data, kind = b"".join([encode(str(key)) + encode(each) for key, each in value.items()]), b"d"
    else:
        raise BadMessage("cannot send a %s" % type(value).__name__)
    return b"%d:%s%s" % (len(data), data, kind)


def decode(data: bytes) -> "Any":
    value, rest = _decode(data, 0, 0)
    if rest != len(data):
        raise BadMessage("extra bytes after the value")
    return value


def _decode(data: bytes, start: int, depth: int) -> "tuple[Any, int]":
    colon = data.find(b":", start, start + 10)
    if colon <= start or depth > _DEPTH:
        raise BadMessage("a length is missing")
    digits = data[start:colon]
    if not digits.isdigit():
        raise BadMessage("a length is not a number")
    begin = colon + 1
    end = begin + int(digits)
    kind = data[end : end + 1]
    if kind == b"s":
        return data[begin:end].decode("utf-8", "surrogateescape"), end + 1
    if kind == b"b":
        return data[begin:end], end + 1
    if kind == b"i":
        number = data[begin:end]
        if not number.lstrip(b"-").isdigit() or len(number) > 20:
            raise BadMessage("an integer is not valid")
        return int(number), end + 1
    if kind in (b"l", b"d"):
        values = []
        while begin < end:
            value, begin = _decode(data, begin, depth + 1)
            values.append(value)
        if begin != end:
            raise BadMessage("a value exceeds its list")
        if kind == b"l":
            return values, end + 1
        if len(values) % 2 or not all(isinstance(key, str) for key in values[::2]):
            raise BadMessage("a key is not text")
        return dict(zip(values[::2], values[1::2])), end + 1
    if kind in (b"n", b"t", b"f") and begin == end:
        return {b"n": None, b"t": True, b"f": False}[kind], end + 1
    raise BadMessage("unknown kind of value")
