"""`holdfast image build`: builds an image from a recipe, or the base image from the packages of a distribution."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.errors import usage_error
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask, home_or_default
from holdfast.cli.terminal.console import Cell, hint, is_terminal, note, printable, write_field, write_json, write_line
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.api.images import Image
    from holdfast.api.progress import Progress
    from holdfast.client import Client
    from holdfast.images.build_host import BuildHost
    from holdfast.images.debian.sources import SourceFiles

_RECIPE: Final = "image.toml"
_LINES: Final = 40

RecipeArgument = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        help=f"A recipe, a folder that contains one ({_RECIPE}), or base or workstation for Holdfast's own images.",
        show_default=False,
    ),
]


def build(
    recipe: RecipeArgument,
    name: Annotated[
        str | None, Option("--name", "-n", metavar="IMAGE", help="Name of the image. Default: the recipe's.")
    ] = None,
    no_cache: Annotated[bool, Option("--no-cache", help="Repeat every step.")] = False,
    package: Annotated[
        list[str] | None,
        Option("--package", metavar="NAME", help="base: an additional package. Can be given several times."),
    ] = None,
    mirror: Annotated[
        str | None, Option(metavar="URL", help="base: mirror of the packages. Default: that of apt on this machine.")
    ] = None,
    suite: Annotated[
        list[str] | None, Option(metavar="NAME", help="base: release, such as bookworm. Default: this machine's.")
    ] = None,
    component: Annotated[
        list[str] | None, Option(metavar="NAME", help="base: components of the mirror.  [default: main]")
    ] = None,
    keyring: Annotated[list[Path] | None, Option(metavar="FILE", help="base: keys that sign the release.")] = None,
    arch: Annotated[
        str | None, Option(metavar="NAME", help="base: Debian architecture. Default: this machine's.")
    ] = None,
    insecure: Annotated[bool, Option("--insecure", help="base: accept a mirror without a signature.")] = False,
    provider: Annotated[str, Option(metavar="NAME", help="Provider that gets the image.")] = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Build an image. In a pipe, print only its name.

    A recipe is a small TOML file: the image to start from, packages, files and commands. Every step is cached, so the
    next build repeats only what has changed. A failed step leaves nothing behind, and the next build continues there.

    base is holdfast/base: git, Python, node, ripgrep and the usual build tools, from the packages of this machine's
    distribution. This machine's apt downloads and verifies them without root, and they are cached in the home folder. A
    machine without apt pulls an image instead.

    workstation is holdfast/workstation, for sessions: the tools of base, a desktop with a browser, and an editor.

    \b
    holdfast image build base
    holdfast image build recipe.toml --name team/web
    holdfast box create --image team/web
    """
    from holdfast.cli.terminal.step_progress import StepProgress

    options = (package, mirror, suite, component, keyring, arch)
    is_base = recipe in ("base", "holdfast/base")
    is_workstation = recipe in ("workstation", "holdfast/workstation")
    if not is_base and (insecure or any(options)):
        raise usage_error(
            "--package, --mirror, --suite, --component, --keyring, --arch and --insecure are only for base"
        )
    if insecure:
        note("insecure", "signatures are not checked: anyone between this machine and the mirror can change packages")
    began = time.monotonic()

    async def work(client: Client) -> Image:
        from holdfast.client.image_build import ServerBuildHost
        from holdfast.images.base import BASE, ENV, PACKAGES
        from holdfast.images.build_host import image_or_none
        from holdfast.images.debian.system import build_of_machine
        from holdfast.images.errors import StepFailed
        from holdfast.images.workstation import RECIPE

        host = ServerBuildHost(client, provider)

        async def build_base(name: str, progress: Progress) -> Image:
            return await build_of_machine(
                host,
                name,
                [*PACKAGES, *(package or [])],
                env=ENV,
                cache=home_or_default(where.home) / "cache" / "packages",
                progress=progress,
                sources=lambda: _sources(mirror, suite or [], component or [], keyring or [], insecure=insecure),
                architecture=arch,
                again=is_base and no_cache,
            )

        try:
            with StepProgress() as progress:
                if is_base:
                    return await build_base(name or BASE, progress)
                if is_workstation and await image_or_none(host, BASE) is None:
                    await build_base(BASE, progress)
                file = str(RECIPE) if is_workstation else recipe
                return await _from_recipe(host, file, name, progress, cache=not no_cache)
        except StepFailed as error:
            show_output(error.output)
            raise

    try:
        image = ask(where, work)
    except KeyboardInterrupt:
        note("stopped", "finished steps are cached; run the same command to continue")
        raise
    print_image(image, time.monotonic() - began, as_json=as_json)


def _sources(
    mirror: str | None,
    suites: Sequence[str],
    components: Sequence[str],
    keyrings: Sequence[Path],
    *,
    insecure: bool,
) -> SourceFiles:
    """The package sources of a base image, from the command line or this machine."""
    from dataclasses import replace

    from holdfast.images.debian.sources import (
        SourceFiles,
        named_source,
        of_distribution,
        read_authorities,
        read_os_release,
        read_sources,
        read_trusted,
    )
    from holdfast.images.debian.system import machine_sources
    from holdfast.images.errors import NoSources

    if mirror is None and not suites:
        return replace(machine_sources(), insecure=insecure)
    release = read_os_release()
    own = of_distribution(read_sources(), release)
    codename = release.get("VERSION_CODENAME")
    named = suites or ([codename] if codename else [])
    place = mirror or (own[0].url if own else None)
    if place is None or not named:
        raise NoSources(
            "a mirror and a suite are needed", hint="give --mirror URL --suite NAME, such as --suite bookworm"
        )
    found = [named_source(place, suite, components or ["main"], keyrings) for suite in named]
    return SourceFiles(tuple(found), read_trusted(), insecure, read_authorities())


async def _from_recipe(host: BuildHost, text: str, name: str | None, progress: Progress, *, cache: bool) -> Image:
    import asyncio

    from holdfast.api.errors.boxes import ImageNotFound
    from holdfast.boxes.images import check_reference
    from holdfast.images import BASE, build, make_plan, read_recipe

    path = await asyncio.to_thread(_recipe_at, Path(text))
    recipe = read_recipe(path)
    called = name or recipe.name
    if called is None:
        raise usage_error(
            "the recipe has no name for the image", 'give --name team/web, or put name = "team/web" into the recipe'
        )
    check_reference(called)
    try:
        base = await host.image(recipe.base)
    except ImageNotFound as error:
        hint = (
            "build it with holdfast image build base" if recipe.base == BASE else "list images with holdfast image list"
        )
        raise ImageNotFound(f"there is no image {recipe.base} to start from", hint=hint) from error
    plan = await asyncio.to_thread(make_plan, recipe, base, path.parent)
    return await build(host, plan, called, recipe.network, progress, cache=cache)


def _recipe_at(path: Path) -> Path:
    return path / _RECIPE if path.is_dir() else path


def show_output(output: bytes) -> None:
    """Print the end of the output of a failed command."""
    lines = output.decode("utf-8", "replace").splitlines()
    if len(lines) > _LINES:
        sys.stderr.write(f"    … {len(lines) - _LINES} earlier lines\n")
    for line in lines[-_LINES:]:
        sys.stderr.write(f"    {printable(line)}\n")
    sys.stderr.flush()


def print_image(image: Image, seconds: float, *, as_json: bool) -> None:
    if as_json:
        write_json(image.to_json())
    elif is_terminal():
        about = f"  {image.digest[:19]}  {describe_size(image.size)}  {seconds:.1f} s"
        write_field("image", Cell(image.name, "bold"), Cell(about, "dim"))
        write_field("next", hint(f"holdfast box create --image {image.name}"))
    else:
        write_line(image.name)
