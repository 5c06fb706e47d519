"""Recipes built in real boxes: cached by step, taken up where they failed, and leaving nothing half done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.images.kitchen import Kitchen, busybox, pieces

from holdfast.api.errors.boxes import CannotIsolate
from holdfast.api.progress import Silent
from holdfast.images import InvalidRecipe, StepFailed, build, make_plan, parse_recipe
from holdfast.providers.local import LocalProvider


@pytest.fixture
async def kitchen(tmp_path: Path) -> AsyncIterator[Kitchen]:
    (tmp_path / "recipe").mkdir()
    try:
        async with LocalProvider(tmp_path / "home") as provider:
            kitchen = Kitchen(provider, tmp_path / "recipe")
            await kitchen.workshop.import_image("test/busybox", pieces(busybox()))
            yield kitchen
            assert await provider.find() == [], "a build leaves no box behind"
    except CannotIsolate as error:
        pytest.skip(f"this machine makes no boxes: {error.message}")


@pytest.mark.anyio
async def test_an_image_has_what_its_recipe_says(kitchen: Kitchen) -> None:
    app = kitchen.folder / "app"
    app.mkdir()
    (app / "run").write_text("#!/bin/sh\necho $GREETING from $PWD\n")
    (app / "run").chmod(0o755)
    image, steps = await kitchen.build(
        """
        commands = ["echo one > /one; pwd > /where; echo $GREETING > /greeting", ["touch", "/it is me"]]
        workdir = "/opt/work"
        [files]
        "/opt/app" = "app"
        [env]
        GREETING = "hello"
        [[steps]]
        commands = ["echo two >> /one"]
        """
    )
    assert steps.done == [
        "/opt/app", "echo one > /one; pwd > /where; echo $GREETING > /greeting", "touch /it is me", "echo two >> /one"
    ]  # fmt: skip
    assert (image.name, image.config.workdir, image.config.env["GREETING"]) == ("test/made", "/opt/work", "hello")
    told = await kitchen.run("test/made", "cat /one /where /greeting; ls '/it is me'; cd /opt/work; /opt/app/run")
    assert told == "one\ntwo\n/opt/work\nhello\n/it is me\nhello from /opt/work\n"
    assert "one" not in await kitchen.run("test/busybox", "ls /")


@pytest.mark.anyio
async def test_what_has_not_changed_is_not_done_again(kitchen: Kitchen) -> None:
    text = 'commands = ["echo $$ > /first", "echo %s > /second"]'
    await kitchen.build(text % "a")
    first = await kitchen.run("test/made", "cat /first")
    _, again = await kitchen.build(text % "a")
    assert (again.done, len(again.skipped)) == ([], 2)
    _, changed = await kitchen.build(text % "b")
    assert (changed.done, changed.skipped) == (["echo b > /second"], ["echo $$ > /first"])
    assert await kitchen.run("test/made", "cat /first /second") == f"{first}b\n"
    assert len(await kitchen.kept()) == 2, "the step that the recipe has no more is forgotten"
    _, other = await kitchen.build(text % "b", name="test/other")
    assert other.done == [], "another image of the same steps is the same snapshot by another name"
    _, fresh = await kitchen.build(text % "b", cache=False)
    assert len(fresh.done) == 2
    assert len(await kitchen.provider.snapshots()) == 2


@pytest.mark.anyio
async def test_a_step_that_fails_shows_what_it_said_and_leaves_nothing(kitchen: Kitchen) -> None:
    text = 'commands = ["echo $$ > /first", "echo made > /half; echo no such luck >&2; %s"]'
    with pytest.raises(StepFailed, match="this ended with 3") as raised:
        await kitchen.build(text % "exit 3")
    assert b"no such luck" in raised.value.output
    assert "the steps before it are kept" in (raised.value.hint or "")
    assert len(await kitchen.kept()) == 1
    with pytest.raises(Exception, match="no local image"):
        await kitchen.workshop.image("test/made")
    _, mended = await kitchen.build(text % "test -e /half && echo there")
    assert mended.skipped == ["echo $$ > /first"]
    assert sorted(mended.said.splitlines()) == [b"no such luck", b"there"]  # from two pipes, in either order


@pytest.mark.anyio
async def test_half_of_a_failed_step_is_not_there_the_next_time(kitchen: Kitchen) -> None:
    text = 'commands = ["echo 1 > /first", "test ! -e /half && echo x > /half && %s"]'
    with pytest.raises(StepFailed):
        await kitchen.build(text % "false")
    _, mended = await kitchen.build(text % "true")
    assert len(mended.done) == 1


@pytest.mark.anyio
async def test_a_command_that_is_not_there_is_said(kitchen: Kitchen) -> None:
    with pytest.raises(StepFailed, match="cannot be run: no-such-tool --yes"):
        await kitchen.build('commands = [["no-such-tool", "--yes"]]')


@pytest.mark.anyio
async def test_a_shell_line_ends_at_its_first_failure(kitchen: Kitchen) -> None:
    with pytest.raises(StepFailed):
        await kitchen.build('commands = ["""\nfalse\necho went on\n"""]')


@pytest.mark.anyio
async def test_packages_are_left_to_the_images_own_manager(kitchen: Kitchen) -> None:
    (kitchen.folder / "apk").write_text('#!/bin/sh\necho "$@" >> /packages\n')
    (kitchen.folder / "apk").chmod(0o755)
    await kitchen.build(
        """
        [files]
        "/bin/apk" = "apk"
        [[steps]]
        packages = ["git", "build-base"]
        """
    )
    assert await kitchen.run("test/made", "cat /packages") == "add --no-cache -- git build-base\n"
    with pytest.raises(StepFailed) as raised:
        await kitchen.build('packages = ["git"]', name="test/none")
    assert b"no package manager" in raised.value.output


@pytest.mark.anyio
async def test_a_recipe_may_be_built_on_another(kitchen: Kitchen) -> None:
    await kitchen.build('commands = ["echo below > /below"]\n[env]\nA = "1"', name="test/below")
    recipe = parse_recipe('base = "test/below"\nnetwork = "none"\ncommands = ["echo $A$B > /above"]\n[env]\nB = "2"')
    plan = make_plan(recipe, await kitchen.workshop.image("test/below"), kitchen.folder)
    image = await build(kitchen.workshop, plan, "test/above", recipe.network, Silent())
    assert dict(image.config.env) == {"A": "1", "B": "2"}
    assert await kitchen.run("test/above", "cat /below /above") == "below\n12\n"


@pytest.mark.anyio
async def test_a_recipe_without_steps_gives_another_name_and_other_variables(kitchen: Kitchen) -> None:
    image, _ = await kitchen.build('[env]\nA = "1"')
    assert dict(image.config.env) == {"A": "1"}
    assert await kitchen.run("test/made", "echo $A") == "1\n"


@pytest.mark.anyio
async def test_a_recipe_takes_no_files_from_beside_its_folder(kitchen: Kitchen, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (kitchen.folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidRecipe, match="leads out"):
        await kitchen.build('[files]\n"/secret" = "link"')
