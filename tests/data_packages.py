"""numpy, pandas and matplotlib for the Python of a box: mounted from the environment that `bin/test` makes of
requirements/data.txt, so that no test has to reach a package registry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.boxes.spec import HostMount

IN_BOX: Final = "/opt/data-packages"
"""For PYTHONPATH."""

_CHECKOUT: Final = Path(__file__).parents[1]


def data_packages() -> HostMount:
    wanted = (_CHECKOUT / "requirements" / "data.txt").read_bytes()
    for made in sorted((_CHECKOUT / ".holdfast").glob("data-*/requirements.txt")):
        if made.read_bytes() == wanted:
            [packages] = made.parent.glob("lib/python*/site-packages")
            return HostMount(str(packages), IN_BOX)
    raise RuntimeError("there is no environment of requirements/data.txt: run bin/test once, which makes it")
