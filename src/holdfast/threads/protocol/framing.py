"""How messages are stored in a stream. A byte stream is just its bytes. In a JSON stream, every message ends in `,` and
a newline.

In valid JSON, a raw newline is only white space, so it is dropped inside messages. Only a newline ends a message.
Therefore positions can be checked, messages can be counted, and a read is a slice in brackets, without parsing or
copying single messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import orjson

from holdfast.api.errors import InvalidRequest, TooLarge
from holdfast.api.limits import MOST_MESSAGES

SEPARATOR: Final = b",\n"
WHOLE_BYTES: Final = 16 * 1024
"""A body up to this size is processed at once. A larger one is processed in slices, and other tasks run in between."""
SLICE_MESSAGES: Final = 256
SLICE_BYTES: Final = 64 * 1024
"""A slice ends with the message that reaches this size."""
_scan = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
"""Finds the end of a value. Numbers are not converted here: orjson judges those that are too long for Python."""
_WHITESPACE: Final = " \t\n\r"
_skip_whitespace = json.decoder.WHITESPACE.match  # type: ignore[attr-defined]

Messages = tuple[list[Any], list[bytes]]
"""Parsed messages, and the original text of each, on one line."""


def parse_json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None


def frame_json(body: bytes) -> bytes:
    """Returns the framed messages of a request body. One level of array is flattened; an empty array yields nothing."""
    _, messages = parse_messages(body)
    return frame(messages)


def frame_slices(body: bytes) -> Iterator[bytes]:
    """Like `frame_json`, but yields the messages of a large body one slice at a time."""
    for _, messages in parse_slices(body):
        yield frame(messages)


def frame(messages: list[bytes]) -> bytes:
    return SEPARATOR.join(messages) + SEPARATOR if messages else b""


def parse_messages(body: bytes) -> Messages:
    """Returns the messages of a request body."""
    value = parse_json(body)
    if type(value) is not list:
        return [value], [_one_line(body)]
    if len(value) > MOST_MESSAGES:
        raise _too_many()
    inside = body.strip()[1:-1]
    if len(value) == 1:
        return value, [_one_line(inside)]
    return value, _elements(value, inside) if value else []


def parse_slices(body: bytes) -> Iterator[Messages]:
    """Yields the messages of a large body one slice at a time. Same messages and errors as `parse_messages`.

    A slice has at least one message, so it takes as long as its longest message.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: it is not UTF-8 ({error.reason})") from None
    position = _skip_whitespace(text, 0).end()
    if not text.startswith("[", position):
        yield parse_messages(body)
        return
    position = _skip_whitespace(text, position + 1).end()
    if text.startswith("]", position):
        _check_end(text, position + 1)
        return
    count, more = 0, True
    while more:
        messages: list[bytes] = []
        begin = position
        while more and len(messages) < SLICE_MESSAGES and position - begin < SLICE_BYTES:
            end = _end_of_value(text, position)
            messages.append(_one_line(text[position:end].encode()))
            position = _skip_whitespace(text, end).end()
            more = text.startswith(",", position)
            if more:
                position = _skip_whitespace(text, position + 1).end()
        count += len(messages)
        if count > MOST_MESSAGES:
            raise _too_many()
        # The scan above accepts more than JSON allows (NaN, lone surrogates). This accepts the same as parse_messages.
        yield parse_json(b"[%b]" % b",".join(messages)), messages
    if not text.startswith("]", position):
        raise InvalidRequest(f"the body is not valid JSON: expected a comma or ] at character {position}")
    _check_end(text, position + 1)


def _end_of_value(text: str, position: int) -> int:
    try:
        return _scan(text, position)[1]
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None


def _check_end(text: str, position: int) -> None:
    if (end := _skip_whitespace(text, position).end()) != len(text):
        raise InvalidRequest(f"the body is not valid JSON: unexpected text after its end, at character {end}")


def _too_many() -> TooLarge:
    return TooLarge(
        f"more than {MOST_MESSAGES} messages in one append",
        hint=f"send them in several requests of at most {MOST_MESSAGES} messages each",
    )


def _elements(values: list[Any], inside: bytes) -> list[bytes]:
    """Returns the original text of the elements. Parsing and encoding again would lose long numbers."""
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
    """Returns framed messages as one JSON array."""
    return b"[" + framed[:-2] + b"]"


def split_messages(framed: bytes) -> list[bytes]:
    return framed.split(SEPARATOR)[:-1]


def skip_messages(framed: bytes, count: int) -> int | None:
    """Returns the position after `count` messages, or None if there are fewer."""
    position = 0
    for _ in range(count):
        position = framed.find(b"\n", position) + 1
        if position == 0:
            return None
    return position
