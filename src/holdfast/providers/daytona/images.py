"""What a new sandbox begins with: a snapshot of Daytona, an image of a registry, or a declarative build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daytona import Image

from holdfast.api.errors.boxes import InvalidSpec
from holdfast.boxes.images import declared_packages

SNAPSHOT: Final = "snapshot:"
DOCKERFILE: Final = "dockerfile:"
_GIT: Final = "apt-get update && apt-get install -y --no-install-recommends git ca-certificates"


@dataclass(frozen=True, slots=True)
class Origin:
    """Neither: Daytona's default snapshot."""

    snapshot: str | None = None
    image: str | Image | None = None

    @property
    def is_registry_image(self) -> bool:
        return isinstance(self.image, str)


def origin_of(name: str | None) -> Origin:
    """Returns what the image of a spec stands for. Raises `InvalidSpec`."""
    if name is None:
        return Origin()
    if name.startswith(DOCKERFILE):
        # A spec comes from any client, and must not read files of this machine.
        raise InvalidSpec(
            f"{name} cannot be the image of one box", hint="build for all of them: holdfast up --daytona-image"
        )
    if name.startswith(SNAPSHOT):
        snapshot = name.removeprefix(SNAPSHOT)
        if not snapshot:
            raise InvalidSpec(f"{name} names no snapshot", hint="for example snapshot:daytona-large")
        return Origin(snapshot=snapshot)
    if (packages := declared_packages(name)) is not None:
        return Origin(image=_with_packages(packages))
    return Origin(image=name)


def _with_packages(packages: list[str]) -> Image:
    """A declarative build, which Daytona caches: Python, git and these packages."""
    image = Image.debian_slim().run_commands(_GIT)
    return image.pip_install(*packages) if packages else image


def default_origin(setting: str | Image | None) -> Origin:
    """Returns the origin of boxes that ask for no image. A Dockerfile of this machine may be named. Blocks."""
    if isinstance(setting, Image):
        return Origin(image=setting)
    if setting is not None and setting.startswith(DOCKERFILE):
        path = Path(setting.removeprefix(DOCKERFILE))
        if not path.is_file():
            raise InvalidSpec(f"there is no Dockerfile {path}", hint="check --daytona-image")
        return Origin(image=Image.from_dockerfile(str(path)))
    return origin_of(setting)
