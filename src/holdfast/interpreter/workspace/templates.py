"""Templates: the images of interpreters, and how to build them.

A template lists Python packages, or names a recipe of an image. If its image is missing, or was built from an earlier
declaration (inactive), it is built when it is needed. Boxes do not change templates.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from holdfast.api.box.network import DEFAULT_LIST, Network, NetworkPolicy
from holdfast.api.errors.boxes import ImageNotFound, ProviderRefused, Unsupported
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.api.images import Image
from holdfast.api.progress import Progress, Silent
from holdfast.boxes.images import DEFAULT_IMAGE, PACKAGES
from holdfast.images.base import ENV
from holdfast.images.build_host import BuildHost, build_spec, image_or_none, temporary_box
from holdfast.images.builder import build
from holdfast.images.debian.system import build_of_machine
from holdfast.images.errors import StepFailed
from holdfast.images.plan import make_plan
from holdfast.images.recipe import Group, Recipe, read_recipe
from holdfast.interpreter.workspace.wheels import HostPip, NoWheels, check_requirement, python_in

BASE: Final = "holdfast/interpreter"
"""The base image of templates with packages: Python and git."""
SYSTEM: Final = ("apt", "ca-certificates", "curl", "git", "procps", "python3", "python3-pip", "python3-venv")
"""Packages of the distribution in the base image, in addition to the essential ones."""
DECLARED: Final = "interpreter-template"
"""The label of an image with the digest of its template."""
_FORMAT: Final = 1
_WHEELS: Final = "/var/cache/holdfast/wheels"
_OWN_WHEELS: Final = "/tmp/holdfast-wheels"
_NAME: Final = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_LONGEST: Final = 60
_LARGEST: Final = 1 << 20
_MOST_PACKAGES: Final = 200
_PIP: Final = ("python3", "-m", "pip", "install", "--no-input", "--no-cache-dir", "--disable-pip-version-check")
_NETWORK: Final = NetworkPolicy(Network.ALLOW, (DEFAULT_LIST,))


_log: Final = logging.getLogger(__name__)


class LoggedProgress(Silent):
    """Logs the steps of a build."""

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        _log.info("%s: %s", step, detail)

    def skip(self, step: str, detail: str = "") -> None:
        _log.info("%s: %s (cached)", step, detail)


class Status(StrEnum):
    READY = "ready"
    MISSING = "missing"
    """There is no image."""
    INACTIVE = "inactive"
    """The image was built from an earlier declaration."""


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    packages: tuple[str, ...] = ()
    """Python packages."""
    recipe: Path | None = None
    """A recipe of an image, instead of packages."""
    built_in: bool = False

    def __post_init__(self) -> None:
        if len(self.name) > _LONGEST or not _NAME.fullmatch(self.name):
            raise InvalidInterpreter(
                f"{self.name[:80]!r} is not a valid template name", hint="use lower case, as in data or my-tools"
            )
        if self.recipe is not None and self.packages:
            raise InvalidInterpreter("a template has packages or a recipe, not both", hint="put packages in the recipe")
        if len(self.packages) > _MOST_PACKAGES:
            raise InvalidInterpreter(f"a template has at most {_MOST_PACKAGES} packages", hint="use a recipe")
        for each in self.packages:
            check_requirement(each)

    @property
    def image(self) -> str:
        return f"template/{self.name}"

    def digest(self) -> str:
        """The digest of the declaration. Reads the recipe."""
        declaration: dict[str, Any] = {
            "format": _FORMAT,
            "base": BASE,
            "packages": sorted(map(check_requirement, self.packages)),
        }
        if self.recipe is not None:
            read_recipe(self.recipe)
            declaration = {"format": _FORMAT, "recipe": self.recipe.read_text()}
        return hashlib.sha256(json.dumps(declaration, sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        if self.recipe is not None:
            return {"name": self.name, "recipe": str(self.recipe)}
        return {"name": self.name, "packages": list(self.packages)}


BUILT_IN: Final = (
    Template("python", built_in=True),
    Template("data", ("numpy", "pandas", "matplotlib"), built_in=True),
    # At the versions that Holdfast is tested with: code in the box and dspy on the host have to understand each other.
    # A test compares them with requirements/dev.txt.
    Template("rlm", ("dspy==3.4.1", "httpx==0.28.1", "pydantic==2.14.3"), built_in=True),
)


def status_of(digest: str, image: Image | None) -> Status:
    if image is None:
        return Status.MISSING
    return Status.READY if image.labels.get(DECLARED) == digest else Status.INACTIVE


def declared(template: Template) -> str:
    """The image of a template for a provider that builds it by itself."""
    return PACKAGES + " ".join(map(check_requirement, template.packages))


class NoSnapshots(Unsupported):
    """The provider keeps no snapshots, or they are switched off, so a template cannot be one."""


# --- declarations ---


class TemplateFiles:
    """Declarations by name: built-in templates, and those in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> Template:
        found = self._read(self._folder / f"{name}.json") if _NAME.fullmatch(name) else None
        found = found or next((each for each in BUILT_IN if each.name == name), None)
        if found is None:
            known = ", ".join(each.name for each in self.all())
            raise InvalidInterpreter(
                f"there is no template {name[:80]}",
                hint=f"use {known}, or create one: holdfast interpreter template build NAME --package PACKAGE",
            )
        return found

    def all(self) -> list[Template]:
        """All templates, sorted by name."""
        own = {each.name: each for path in sorted(self._folder.glob("*.json")) if (each := self._read(path))}
        return sorted(({each.name: each for each in BUILT_IN} | own).values(), key=lambda each: each.name)

    def keep(self, template: Template) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = self._folder / f".{secrets.token_hex(8)}"
        try:
            half.write_text(json.dumps(template.to_json(), indent=2) + "\n")
            half.replace(self._folder / f"{template.name}.json")
        finally:
            half.unlink(missing_ok=True)

    def forget(self, name: str) -> None:
        if _NAME.fullmatch(name):
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    def _read(self, path: Path) -> Template | None:
        try:
            with path.open("rb") as file:
                document = json.loads(file.read(_LARGEST))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(path, str(error)) from None
        try:
            recipe = document.get("recipe")
            packages = tuple(document.get("packages", ()))
            if document["name"] != path.stem or not all(isinstance(each, str) for each in packages):
                raise ValueError("its name or packages are invalid")
            return Template(path.stem, packages, None if recipe is None else Path(recipe))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _damaged(path, str(error)) from None


def _damaged(path: Path, why: str) -> InvalidInterpreter:
    return InvalidInterpreter(f"the template in {path} cannot be read: {why}", hint="fix the file, or remove it")


# --- images ---


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    template: Template
    status: Status
    image: Image | None


class Templates:
    """Templates and their images at one provider. The build host belongs to the caller.

    `environment` is the environment of pip on this machine; `cache` is a folder for packages.
    """

    def __init__(self, host: BuildHost, files: TemplateFiles, *, cache: Path, environment: Mapping[str, str]) -> None:
        self.files = files
        self._host = host
        self._cache = cache
        self._pip = HostPip(environment)
        self._turns: dict[str, asyncio.Lock] = {}

    @classmethod
    def of_home(cls, host: BuildHost, home: Path, environment: Mapping[str, str]) -> Self:
        """Use the declarations and the package cache of a home folder."""
        return cls(host, TemplateFiles(home / "templates"), cache=home / "cache", environment=environment)

    async def inspect(self, template: Template) -> TemplateInfo:
        image = await image_or_none(self._host, template.image)
        return TemplateInfo(template, status_of(await asyncio.to_thread(template.digest), image), image)

    async def list(self) -> tuple[TemplateInfo, ...]:
        return tuple([await self.inspect(each) for each in await asyncio.to_thread(self.files.all)])

    async def resolve(self, name: str, progress: Progress | None = None) -> str:
        """Return the image of a template. Builds it if it is missing or inactive."""
        template = await asyncio.to_thread(self.files.get, name)
        async with self._turns.setdefault(name, asyncio.Lock()):
            known = await self.inspect(template)
            if known.status is not Status.READY:
                progress = progress or LoggedProgress()
                progress.begin("template", f"{name} is {known.status}: building it")
                progress.end()
                _log.warning("template %s is %s: building it, which takes a while", name, known.status)
                try:
                    image = await self.build(template, progress)
                except NoSnapshots as error:
                    _log.warning("%s", error.message)
                    return declared(template)
                _log.warning("template %s is ready: %d MB", name, image.size >> 20)
        return template.image

    async def build(self, template: Template, progress: Progress, *, again: bool = False) -> Image:
        """Build the image if it is not ready. `again` always builds it, with the latest versions of the packages.

        Raises `NoSnapshots`; `resolve` then returns the image that `declared` does."""
        known = await self.inspect(template)
        if known.image is not None and known.status is Status.READY and not again:
            progress.skip("template", f"{template.name} is ready")
            return known.image
        digest = await asyncio.to_thread(template.digest)
        if template.recipe is not None:
            return await self._from_recipe(template, template.recipe, digest, progress, again=again)
        base = await image_or_none(self._host, DEFAULT_IMAGE) or await self._base(progress, again=again)
        with tempfile.TemporaryDirectory(prefix="holdfast-template-") as folder:
            recipe = await self._recipe(template, base, Path(folder), progress)
            return await self._build(template, recipe, base, Path(folder), digest, progress, again=again)

    async def remove(self, template: Template) -> None:
        """Remove the image and the declaration. A built-in template can be built again."""
        await self._host.remove_image(template.image)
        await asyncio.to_thread(self.files.forget, template.name)

    # --- building ---

    async def _from_recipe(
        self, template: Template, path: Path, digest: str, progress: Progress, *, again: bool
    ) -> Image:
        recipe = await asyncio.to_thread(read_recipe, path)
        base = await image_or_none(self._host, recipe.base)
        if base is None and recipe.base == BASE:
            base = await self._base(progress, again=False)
        if base is None:
            raise ImageNotFound(
                f"the base image {recipe.base} does not exist",
                hint="holdfast image list shows the images; holdfast image build base creates holdfast/base",
            )
        return await self._build(template, recipe, base, path.parent, digest, progress, again=again)

    async def _build(
        self,
        template: Template,
        recipe: Recipe,
        base: Image,
        folder: Path,
        digest: str,
        progress: Progress,
        *,
        again: bool,
    ) -> Image:
        plan = await asyncio.to_thread(make_plan, recipe, base, folder)
        labels = {DECLARED: digest}
        try:
            return await build(
                self._host, plan, template.image, recipe.network, progress, cache=not again, labels=labels
            )
        except (Unsupported, ProviderRefused) as error:
            if base.name != DEFAULT_IMAGE or template.recipe is not None:
                raise
            raise NoSnapshots(
                f"template {template.name} cannot be a snapshot at {self._host.provider}: {error.message}",
                hint="interpreters with this template use a declared image, which the provider builds",
            ) from error

    async def _base(self, progress: Progress, *, again: bool) -> Image:
        """The base image: Python and git of this machine's distribution. Built if it is missing, or `again`."""
        image = await image_or_none(self._host, BASE)
        if image is not None and not again:
            return image
        try:
            return await build_of_machine(
                self._host, BASE, SYSTEM, env=ENV, cache=self._cache / "packages", progress=progress
            )
        except StepFailed as error:
            raise StepFailed(
                f"{BASE} could not be built for provider {self._host.provider}: {error.message}",
                output=error.output,
                hint="give a --recipe whose base image has Python, pip and git",
            ) from error

    async def _recipe(self, template: Template, base: Image, folder: Path, progress: Progress) -> Recipe:
        """Download packages with the pip of this machine. If that fails, pip in the box downloads them."""
        if not template.packages:
            return Recipe(base.name, (), network=NetworkPolicy(Network.NONE))
        packages = tuple(map(check_requirement, template.packages))
        wheels = folder / "wheels"
        await asyncio.to_thread(wheels.mkdir)
        async with temporary_box(
            await self._host.create(build_spec(self._host, base.name, NetworkPolicy(), template.image))
        ) as box:
            python = await python_in(box)
        progress.begin("wheels", " ".join(packages))
        try:
            await self._pip.download(packages, python, wheels, progress)
        except NoWheels as error:
            progress.end(f"{error}: the box downloads them")
            return Recipe(base.name, (Group(commands=((*_PIP, *packages),)),), network=_NETWORK)
        count = len(await asyncio.to_thread(os.listdir, wheels))
        progress.end(f"{count} wheel{'s' if count > 1 else ''}")
        # In a machine of others, we may not be root.
        place, env = (_OWN_WHEELS, ENV) if base.name == DEFAULT_IMAGE else (_WHEELS, {})
        install = (*_PIP, "--no-index", "--find-links", place, *packages)
        group = Group(files={place: "wheels"}, commands=(install,))
        return Recipe(base.name, (group,), env=env, network=NetworkPolicy(Network.NONE))
