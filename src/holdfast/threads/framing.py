"""How messages lie in a stream. Byte streams are the bytes; in a JSON stream every message ends in `,` and a newline.

A raw newline can stand in valid JSON only as white space, where it means nothing and is dropped. So a newline ends a
message and nothing else does: positions can be checked, messages counted, and a read is a slice in brackets, with
no parsing and no copying of messages one by one.
"""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from holdfast.threads.errors import BodyTooLarge, InvalidRequest

SEPARATOR: Final = b",\n"
MOST_MESSAGES: Final = 20_000
"""In one append. Each is checked while nobody else is served."""
_scan = json.JSONDecoder().raw_decode
_WHITESPACE: Final = " \t\n\r"


def parse_json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None


def frame_json(body: bytes) -> bytes:
    """The framed messages of a request body, one level of array flattened; empty for an empty array."""
    _, messages = parse_messages(body)
    return SEPARATOR.join(messages) + SEPARATOR if messages else b""


def parse_messages(body: bytes) -> tuple[list[Any], list[bytes]]:
    """The messages of a request body, parsed, and each as it was written, on one line."""
    value = parse_json(body)
    if type(value) is not list:
        return [value], [_one_line(body)]
    if len(value) > MOST_MESSAGES:
        raise BodyTooLarge(f"{len(value)} messages in one append: at most {MOST_MESSAGES}, so send them in several")
    inside = body.strip()[1:-1]
    if len(value) == 1:
        return value, [_one_line(inside)]
    return value, _elements(value, inside)


def _elements(values: list[Any], inside: bytes) -> list[bytes]:
    """The elements as they were written: parsing and writing again would lose long numbers."""
    compact = [orjson.dumps(value) for value in values]
    if b",".join(compact) == inside:
        return compact
    text = inside.decode()
    elements = []
    position, length = 0, len(text)
    try:
        while position < length:
            while text[position] in _WHITESPACE:
                position += 1
            _, end = _scan(text, position)
            elements.append(_one_line(text[position:end].encode()))
            position = end
            while position < length and text[position] in _WHITESPACE + ",":
                position += 1
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    return elements


def _one_line(message: bytes) -> bytes:
    message = message.strip()
    return message.translate(None, b"\r\n") if b"\n" in message or b"\r" in message else message


def as_array(framed: bytes) -> bytes:
    """Framed messages as one JSON array."""
    return b"[" + framed[:-2] + b"]"


def split_messages(framed: bytes) -> list[bytes]:
    return framed.split(SEPARATOR)[:-1]


def skip_messages(framed: bytes, count: int) -> int | None:
    """The position after `count` messages; None where there are fewer."""
    position = 0
    for _ in range(count):
        position = framed.find(b"\n", position) + 1
        if position == 0:
            return None
    return position
