"""docs/guest-stream.md says what both sides do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.guest.init import codec, files, frames, init, stream_server

SPEC = (Path(__file__).parents[2] / "docs/guest-stream.md").read_text()
_PRIVATE = {"bridge", "hold", "discard"}


def test_it_lists_every_kind_of_frame() -> None:
    told = {int(number): name for number, name in re.findall(r"^\| (\d+) \| ([A-Z]+) \|", SPEC, re.MULTILINE)}
    assert told == {number: name for name, number in vars(frames).items() if name.isupper() and number in frames.KINDS}


def test_it_lists_every_operation() -> None:
    groups = re.findall(r"^\| (?:processes|files|network|the box) \| (.*) \|$", SPEC, re.MULTILINE)
    told = set(re.findall(r"`(\w+)`", " ".join(groups)))
    assert told == (set(init._OPERATIONS) | set(files.OPERATIONS) | set(stream_server._OPERATIONS)) - _PRIVATE


@pytest.mark.parametrize(
    "value",
    [frames.LONGEST, frames.FIRST_OWN, frames.FIRST_CREDIT, frames.MOST_CREDIT, codec.LIMIT],
)
def test_it_has_the_numbers(value: int) -> None:
    assert f"{value:,}" in SPEC


def test_its_examples_of_values_are_right() -> None:
    for value, encoded in [(42, b"2:42i"), (b"ab", b"2:abb"), ("ab", b"2:abs"), ([1, 2], b"8:1:1i1:2il")]:
        assert codec.encode(value) == encoded
        assert f"`{encoded.decode()}`" in SPEC
    assert codec.encode({"a": 1}) == b"8:1:as1:1id"
    assert frames.GREETING == b"holdfast bridge 1\n"
    assert (frames.HEAD.size, frames.STREAMS, frames.PING_SECONDS, frames.SILENCE_SECONDS) == (9, 4, 15.0, 60.0)
