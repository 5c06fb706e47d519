"""Options that the commands of runs share: threads, models, and the settings of their boxes."""

from __future__ import annotations

from typing import Annotated, Any

from holdfast.cli.box.spec import read_value
from holdfast.cli.completion import complete_model, complete_thread
from holdfast.cli.network_options import NetworkName, parse_policy
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.terminal.durations import parse_duration
from holdfast.cli.terminal.sizes import parse_size

RunThreadArgument = Annotated[
    str,
    Argument(
        metavar="THREAD",
        help="Id of the thread, or the beginning of it.",
        show_default=False,
        autocompletion=complete_thread,
    ),
]
ModelOption = Annotated[
    str | None,
    Option(
        "--model",
        metavar="NAME[/MODEL]",
        help="Model, from holdfast model list. Default: the only one.",
        autocompletion=complete_model,
    ),
]

TimeoutOption = Annotated[
    str | None,
    Option("--timeout", metavar="TIME", help="End the run after this time: 90s, 30m, 2h. 0 means never."),
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
    """The settings of a run's box, as the API takes them."""
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
