"""Creates a layer by copying the files of a box that runs, or whose files are not sealed.

The launcher does the copying (`copier.py`). This module passes it descriptors and stores the result.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

from holdfast.api.errors.boxes import BoxNotStill, FileProblem
from holdfast.api.ids import new_id
from holdfast.providers.host.disk.data_dir import FOLDER, DataDir
from holdfast.providers.host.disk.layers import unfinished_layer


async def copy_top(
    data_dir: DataDir,
    id: str,
    copy: Callable[[int, int], Awaitable[Mapping[str, Any]]],
    on_disk: Callable[[Callable[[], None]], Awaitable[None]],
    *,
    running: bool,
) -> str:
    """Copy the upper folder of a box into a new layer. Returns its id. The caller keeps layers from removal.

    `copy` copies one open folder into another. `on_disk` runs slow work. Raises `BoxNotStill` or `FileProblem`.
    """
    layer: str = new_id("l")
    making = ExitStack()
    try:
        made = making.enter_context(unfinished_layer(data_dir))
        data_dir.make_folder(made / "files")
        with ExitStack() as descriptors:
            source, target = (os.open(each, FOLDER) for each in (data_dir.box(id) / "upper", made / "files"))
            descriptors.callback(os.close, source)
            descriptors.callback(os.close, target)
            check_copied(id, await copy(source, target), running=running)
        made.rename(data_dir.layers / layer)
    finally:
        await on_disk(making.close)
    return layer


def check_copied(id: str, outcome: Mapping[str, Any], *, running: bool) -> None:
    """Raises `BoxNotStill` or `FileProblem` if a copy failed."""
    if outcome.get("changed"):
        if running:
            message = f"the files of box {id} changed while they were copied, although its processes were held"
            raise BoxNotStill(message, hint=f"stop the box first: holdfast box stop {id}")
        raise BoxNotStill(
            f"the files of box {id} changed while they were copied, although it is stopped",
            hint=f"another box writes to them: delete the boxes that shared a volume with {id}",
        )
    if "error" in outcome:
        reason = ": ".join(filter(None, (os.strerror(outcome["error"]), outcome.get("about"))))
        raise FileProblem(
            f"the files of box {id} cannot be copied: {reason}",
            hint=f"stop the box first: holdfast box stop {id}; a stopped box needs no copy",
        )
