"""Packages that `bin/test` installs beside those of the tests themselves, so that no test has to reach a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.api.box.spec import HostMount

IN_BOX: Final = "/opt/data-packages"
"""For PYTHONPATH."""

_CHECKOUT: Final = Path(__file__).parents[1]


def packages_of(name: str) -> Path:
    """Where the packages of requirements/<name>.txt are."""
    wanted = (_CHECKOUT / "requirements" / f"{name}.txt").read_bytes()
    for made in sorted((_CHECKOUT / ".holdfast").glob(f"{name}-*/requirements.txt")):
        if made.read_bytes() == wanted:
            [packages] = made.parent.glob("lib/python*/site-packages")
            return packages
    raise RuntimeError(f"there is no environment of requirements/{name}.txt: run bin/test once, which makes it")


def data_packages() -> HostMount:
    """numpy, pandas and matplotlib, for the Python of a box."""
    return HostMount(str(packages_of("data")), IN_BOX)
