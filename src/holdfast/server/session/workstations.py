"""Decides whether a new session gets a workstation, and with which image."""

from __future__ import annotations

from dataclasses import replace

from holdfast.api.errors import HoldfastError
from holdfast.boxes.service.boxes import Boxes
from holdfast.images.workstation import WORKSTATION
from holdfast.runs.launch.plan import Options


async def with_workstation(options: Options, wanted: bool | None, boxes: Boxes) -> Options:
    """Returns the options of a session with its workstation. `wanted` is as in `NewSession.workstation`.

    Without the image, a workstation has the programs that the box has anyway: none is required.
    """
    spec = options.box
    if wanted is False or (wanted is None and (spec.image is not None or options.environment is not None)):
        return options
    if spec.image is None and await _is_built(boxes, spec.provider):
        return replace(options, spec=replace(spec, image=WORKSTATION), workstation=True)
    return replace(options, workstation=wanted is True)


async def _is_built(boxes: Boxes, provider: str) -> bool:
    images = boxes.provider(provider).images
    if images is None:
        return False
    try:
        await images.get(WORKSTATION)
    except HoldfastError:
        return False
    return True
