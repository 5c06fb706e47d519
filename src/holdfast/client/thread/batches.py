"""Splits the entries of one append into as many requests as needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.api.limits import MOST_BYTES, MOST_MESSAGES


def split_batches(entries: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields encoded entries, in order, in batches that fit in one request.

    An entry that is too large for a request is a batch of its own, so that the server reports it.
    """
    begin, size = 0, 1
    for index, entry in enumerate(entries):
        size += len(entry) + 1  # including a comma or bracket
        if index > begin and (size > MOST_BYTES or index - begin == MOST_MESSAGES):
            yield entries[begin:index]
            begin, size = index, 1 + len(entry) + 1
    if begin < len(entries):
        yield entries[begin:]
