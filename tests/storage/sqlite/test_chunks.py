"""Rows of a stream: a good size, no message cut, and no two at one position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.storage.sqlite.streams.chunks import CHUNK_BYTES, is_damaged, join_chunks

_LENGTHS = st.integers(1, 300) | st.sampled_from(
    [CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 1, 5 * CHUNK_BYTES]
)
_PIECES = st.lists(st.lists(_LENGTHS, min_size=1, max_size=4), max_size=4)


@given(pieces=_PIECES, start=st.integers(0, 1000))
def test_rows_hold_all_bytes_in_order_and_end_at_different_positions(pieces: list[list[int]], start: int) -> None:
    appends = [b"".join(b"x" * (length - 1) + b"\n" for length in lengths) for lengths in pieces]
    whole = b"".join(appends)
    rows = join_chunks(7, start + len(whole), appends)
    assert b"".join(data for _, _, data, _ in rows) == whole
    position = start
    for stream, end, data, checksum in rows:
        assert data.endswith(b"\n")
        assert end == position + len(data) > position
        assert not is_damaged(stream, end, data, checksum)
        position = end
