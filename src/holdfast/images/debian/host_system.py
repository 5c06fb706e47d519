"""A system of the packages that this machine's own apt would install: where they come from, and whom to believe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx

from holdfast.boxes.images import Image
from holdfast.images.build_host import Workshop
from holdfast.images.debian.bootstrap import Signed, Trust, build_system, choose, is_current, utc_now
from holdfast.images.debian.download import Downloads
from holdfast.images.debian.sources import (
    AptConfiguration,
    Source,
    debian_architecture,
    of_distribution,
    read_configuration,
    read_os_release,
)
from holdfast.images.errors import NoSources
from holdfast.images.progress import Progress

_DISTRIBUTION_KEYS: Final = ("debian-archive-keyring.gpg", "ubuntu-archive-keyring.gpg")


def own_sources(apt: AptConfiguration) -> list[Source]:
    """Those of the distribution. Raises `NoSources` where apt names none."""
    own = of_distribution(apt.sources, read_os_release())
    if not own:
        raise NoSources(
            "this machine's apt does not say where its distribution comes from, or there is no apt",
            hint="name a mirror: holdfast image build base --mirror URL --suite NAME --keyring FILE",
        )
    return own


def own_trust(apt: AptConfiguration) -> Trust:
    known = [Path("/usr/share/keyrings") / name for name in _DISTRIBUTION_KEYS]
    return Signed([*apt.keyrings, *(path for path in known if path.is_file())])


async def build_of_machine(
    workshop: Workshop,
    name: str,
    packages: Sequence[str],
    *,
    env: Mapping[str, str],
    cache: Path,
    progress: Progress,
    sources: Sequence[Source] | None = None,
    trust: Trust | None = None,
    architecture: str | None = None,
    again: bool = False,
) -> Image:
    """The image of these packages, and of what they need, under this name. Where it is made of these very packages
    already, nothing is done, unless `again`. Sources, keys and processor are the machine's, where nothing is said."""
    apt = read_configuration()
    # The proxy that apt uses, else what the environment says.
    async with httpx.AsyncClient(proxy=apt.proxy, headers={"User-Agent": "holdfast"}) as http:
        downloads = Downloads(http, cache)
        system = await choose(
            downloads,
            own_sources(apt) if sources is None else sources,
            packages,
            trust=trust or own_trust(apt),
            architecture=architecture or debian_architecture(),
            env=env,
            now=utc_now if apt.check_valid_until else None,
            progress=progress,
        )
        if not again and (image := await is_current(workshop, system, name)) is not None:
            progress.skip("image", f"{name} is made of these very packages")
            return image
        image = await build_system(workshop, downloads, system, name, progress)
        downloads.forget_old()
        return image
