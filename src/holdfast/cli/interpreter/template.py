"""`holdfast interpreter template`: the packages that the boxes of interpreters start with."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask, home_or_default
from holdfast.cli.terminal.console import (
    Cell,
    hint,
    is_terminal,
    note,
    write_field,
    write_json,
    write_line,
    write_table,
)
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.api.images import Image
    from holdfast.client import Client
    from holdfast.interpreter.workspace.templates import Template, TemplateInfo, Templates

T = TypeVar("T")

NameArgument = Annotated[str, Argument(metavar="NAME", help="Name of the template.", show_default=False)]
ProviderOption = Annotated[str, Option("--provider", metavar="NAME", help="Provider of the boxes.")]
PackageOption = Annotated[
    list[str] | None,
    Option(
        "--package", "-p", metavar="PACKAGE", help="A Python package, such as 'polars>=1'. Can be given several times."
    ),
]
RecipeOption = Annotated[
    Path | None, Option("--recipe", metavar="FILE", help="Recipe of an image, instead of packages.")
]


def build(
    name: NameArgument,
    package: PackageOption = None,
    recipe: RecipeOption = None,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Build a template, unless it is ready. In a pipe, print only the name of its image.

    data has numpy, pandas and matplotlib; python has no packages. With --package or --recipe, choose your own name.
    This machine's pip downloads packages as wheels, so the box that installs them needs no network. If this machine has
    no pip, or a package has no wheel, the pip in the box downloads them.

    \b
    holdfast interpreter template build data
    holdfast interpreter template build tools --package polars --package 'httpx>=0.27'
    holdfast interpreter template build tools --recipe image.toml
    """
    _build(name, package, recipe, provider, where, as_json=as_json, again=False)


def refresh(
    name: NameArgument,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Build a template again with the latest packages that it allows. Existing boxes keep what they started with."""
    _build(name, None, None, provider, where, as_json=as_json, again=True)


def list_(
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List the templates, and whether they are built."""

    async def work(templates: Templates) -> tuple[TemplateInfo, ...]:
        return await templates.list()

    known = _with_templates(where, provider, work)
    if as_json:
        write_json({"templates": [_document(each) for each in known]})
        return
    write_table(
        ("name", "status", "size", "age", "of"),
        [
            (
                Cell(each.template.name, "bold"),
                str(each.status),
                "" if each.image is None else describe_size(each.image.size),
                "" if each.image is None else describe_duration(time.time() - each.image.created_at / 1000),
                _made_of(each.template),
            )
            for each in known
        ],
    )


def show(
    name: NameArgument,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show one template."""

    async def work(templates: Templates) -> TemplateInfo:
        return await templates.inspect(templates.files.get(name))

    known = _with_templates(where, provider, work)
    if as_json:
        write_json(_document(known))
        return
    write_field("template", Cell(known.template.name, "bold"))
    write_field("status", str(known.status))
    write_field("image", known.template.image)
    if known.image is not None:
        write_field("digest", known.image.digest)
        write_field("size", describe_size(known.image.size))
        write_field("age", describe_duration(time.time() - known.image.created_at / 1000))
    write_field("of", _made_of(known.template))
    if known.status != "ready":
        write_field("next", hint(f"holdfast interpreter template build {name}"))


def remove(
    name: NameArgument,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Remove a template and its image. Existing boxes keep working; a built-in template can be built again."""

    async def work(templates: Templates) -> None:
        await templates.remove(templates.files.get(name))

    _with_templates(where, provider, work)
    if as_json:
        write_json({"name": name, "removed": True})
    else:
        write_field("removed", name)


def ensure_template(name: str, provider: str, where: Where) -> None:
    """Build a template and show the progress. Does nothing if it is ready."""

    async def work(templates: Templates) -> None:
        from holdfast.cli.image.build import show_output
        from holdfast.cli.terminal.step_progress import StepProgress
        from holdfast.images.errors import StepFailed
        from holdfast.interpreter.workspace.templates import NoSnapshots

        known = await templates.inspect(templates.files.get(name))
        if known.status == "ready":
            return
        note("template", Cell(name, "bold"), Cell(f"  is {known.status}: building it", "dim"))
        try:
            with StepProgress() as progress:
                await templates.build(known.template, progress)
        except NoSnapshots as error:
            note("template", error.message, error.hint or "")
        except StepFailed as error:
            show_output(error.output)
            raise

    _with_templates(where, provider, work)


def _build(
    name: str,
    packages: list[str] | None,
    recipe: Path | None,
    provider: str,
    where: Where,
    *,
    as_json: bool,
    again: bool,
) -> None:
    from holdfast.cli.terminal.step_progress import StepProgress

    began = time.monotonic()

    async def work(templates: Templates) -> Image:
        from holdfast.cli.image.build import show_output
        from holdfast.images.errors import StepFailed

        template = _chosen(templates, name, packages, recipe)
        try:
            with StepProgress() as progress:
                image = await templates.build(template, progress, again=again)
        except StepFailed as error:
            show_output(error.output)
            raise
        if packages or recipe:
            templates.files.keep(template)  # only now: a template that cannot be built replaces no other
        return image

    try:
        image = _with_templates(where, provider, work)
    except KeyboardInterrupt:
        note("stopped", "what was downloaded is kept; run the same command to continue")
        raise
    if as_json:
        write_json({"name": name, "image": image.to_json()})
    elif is_terminal():
        seconds = time.monotonic() - began
        write_field("template", Cell(name, "bold"), Cell(f"  {describe_size(image.size)}  {seconds:.1f} s", "dim"))
        write_field("next", Cell(f'Interpreter(template="{name}")', "dim"))
    else:
        write_line(image.name)


def _chosen(templates: Templates, name: str, packages: list[str] | None, recipe: Path | None) -> Template:
    from holdfast.interpreter.workspace.templates import Template

    if not packages and recipe is None:
        return templates.files.get(name)
    place = None if recipe is None else recipe.expanduser().absolute()
    return Template(
        name, tuple(packages or ()), place / "image.toml" if place is not None and place.is_dir() else place
    )


def _with_templates(where: Where, provider: str, work: Callable[[Templates], Awaitable[T]]) -> T:
    async def with_client(client: Client) -> T:
        from holdfast.api.errors.interpreters import InterpreterError
        from holdfast.client.image_build import ServerBuildHost
        from holdfast.interpreter.workspace.templates import Templates

        templates = Templates.of_home(ServerBuildHost(client, provider), home_or_default(where.home), os.environ)
        try:
            return await work(templates)
        except InterpreterError as error:
            raise CommandError(error.message, next_step=error.hint, exit=_exit(error), code=error.code) from error

    return ask(where, with_client)


def _exit(error: Exception) -> Exit:
    from holdfast.api.errors.interpreters import InvalidInterpreter

    return Exit.USAGE if isinstance(error, InvalidInterpreter) else Exit.FAILURE


def _made_of(template: Template) -> str:
    if template.recipe is not None:
        return f"recipe {template.recipe}"
    return " ".join(template.packages) or "Python and git"


def _document(known: TemplateInfo) -> dict[str, Any]:
    return {
        **known.template.to_json(),
        "builtIn": known.template.built_in,
        "status": str(known.status),
        "image": None if known.image is None else known.image.to_json(),
    }
