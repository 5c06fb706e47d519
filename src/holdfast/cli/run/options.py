"""Options that the commands of runs share: threads, models and time limits."""

from __future__ import annotations

from typing import Annotated

from holdfast.cli.completion import complete_model, complete_thread
from holdfast.cli.parsing.parameters import Argument, Option

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

CheckpointsOption = Annotated[
    str | None,
    Option(
        "--checkpoints",
        metavar="POLICY",
        help="Save the files after each turn: every, off, or every with limits, as in docs/forks.md.",
    ),
]
TimeoutOption = Annotated[
    str | None,
    Option("--timeout", metavar="TIME", help="End the run after this time: 90s, 30m, 2h. 0 means never."),
]
