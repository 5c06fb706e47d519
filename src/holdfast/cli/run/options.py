"""Options that the commands on runs share: threads by name, agents and models, and what their boxes are to be."""

from __future__ import annotations

from typing import Annotated, Any

from holdfast.cli.box.spec import read_value
from holdfast.cli.completion import complete_model, complete_thread
from holdfast.cli.network_options import NetworkName, parse_policy
from holdfast.cli.parameters import Argument, Option
from holdfast.cli.terminal.durations import parse_duration
from holdfast.cli.terminal.sizes import parse_size

RunThreadArgument = Annotated[
    str,
    Argument(
        metavar="THREAD",
        help="Id of the thread, or its beginning.",
        show_default=False,
        autocompletion=complete_thread,
    ),
]
ModelOption = Annotated[
    str | None,
    Option(
        "--model",
        metavar="NAME[/MODEL]",
        help="Which model, as holdfast model list shows; else the only one.",
        autocompletion=complete_model,
    ),
]

TimeoutOption = Annotated[
    str | None,
    Option("--timeout", metavar="TIME", help="End the run after this long, whoever is gone: 90s, 30m, 2h; 0 is never."),
]


def read_timeout(timeout: str | None) -> int | None:
    return None if timeout is None else read_value(parse_duration, timeout)


def describe_box(
    *,
    provider: str | None,
    image: str | None,
    cpu: float | None,
    memory: str | None,
    disk: str | None,
    pids: int | None,
    network: NetworkName | None,
    allow: list[str] | None,
    bandwidth: str | None,
    connections: int | None,
) -> dict[str, Any]:
    """The box of a run, as the server takes it."""
    wanted: dict[str, Any] = {
        "provider": provider,
        "image": image,
        "cpu": cpu,
        "memory": None if memory is None else read_value(parse_size, memory),
        "disk": None if disk is None else read_value(parse_size, disk),
        "pids": pids,
    }
    if network or allow or bandwidth or connections:
        wanted["network"] = parse_policy(network, allow, bandwidth, connections).to_json()
    return {name: value for name, value in wanted.items() if value is not None}
