"""The names of a harness's modules that run inside a box. The host packs them; the runner imports them.

No other guest module names a module outside the guest. A harness has `holdfast.harnesses.NAME.reader`, with a class
`Reader` that turns the agent's output into entries. If the agent needs one, it also has
`holdfast.harnesses.NAME.driver`, a program that is started in place of the agent. If the agent has a server that can
stay between prompts, it has `holdfast.harnesses.NAME.host`, with a class `Host` for the runner of a session.
"""

from __future__ import annotations


def reader_module(harness: str) -> str:
    return "holdfast.harnesses.%s.reader" % harness


def driver_module(harness: str) -> str:
    return "holdfast.harnesses.%s.driver" % harness


def host_module(harness: str) -> str:
    return "holdfast.harnesses.%s.host" % harness
