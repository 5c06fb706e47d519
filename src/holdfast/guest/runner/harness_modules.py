"""The modules of a harness that run inside a box, by name. The host packs them; the runner imports them.

Nothing else of the guest names a module outside of it. A harness brings its own: `holdfast.harnesses.NAME.reader`, with
a class `Reader` that turns what the agent prints into entries, and where the agent needs one,
`holdfast.harnesses.NAME.driver`, a program that is started in its place.
"""

from __future__ import annotations


def reader_module(harness: str) -> str:
    return "holdfast.harnesses.%s.reader" % harness


def driver_module(harness: str) -> str:
    return "holdfast.harnesses.%s.driver" % harness
