"""Recipes built in real boxes: cached by step, taken up where they failed, and leaving nothing half done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.images.image_builds import ImageBuilds, busybox, pieces

from holdfast.api.errors.boxes import CannotIsolate
from holdfast.api.progress import Silent
from holdfast.images import InvalidRecipe, StepFailed, build, make_plan, parse_recipe
from holdfast.providers.local import LocalProvider


@pytest.fixture
async def builds(tmp_path: Path) -> AsyncIterator[ImageBuilds]:
    (tmp_path / "recipe").mkdir()
    try:
        async with LocalProvider(tmp_path / "home") as provider:
            builds = ImageBuilds(provider, tmp_path / "recipe")
            await builds.host.import_image("test/busybox", pieces(busybox()))
            yield builds
            assert await provider.find() == [], "a build leaves no box behind"
    except CannotIsolate as error:
        pytest.skip(f"this machine makes no boxes: {error.message}")


@pytest.mark.anyio
async def test_an_image_has_what_its_recipe_says(builds: ImageBuilds) -> None:
    app = builds.folder / "app"
    app.mkdir()
    (app / "run").write_text("#!/bin/sh\necho $GREETING from $PWD\n")
    (app / "run").chmod(0o755)
    image, steps = await builds.build(
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
    told = await builds.run("test/made", "cat /one /where /greeting; ls '/it is me'; cd /opt/work; /opt/app/run")
    assert told == "one\ntwo\n/opt/work\nhello\n/it is me\nhello from /opt/work\n"
    assert "one" not in await builds.run("test/busybox", "ls /")


@pytest.mark.anyio
async def test_what_has_not_changed_is_not_done_again(builds: ImageBuilds) -> None:
    text = 'commands = ["echo $$ > /first", "echo %s > /second"]'
    await builds.build(text % "a")
    first = await builds.run("test/made", "cat /first")
    _, again = await builds.build(text % "a")
    assert (again.done, len(again.skipped)) == ([], 2)
    _, changed = await builds.build(text % "b")
    assert (changed.done, changed.skipped) == (["echo b > /second"], ["echo $$ > /first"])
    assert await builds.run("test/made", "cat /first /second") == f"{first}b\n"
    assert len(await builds.kept()) == 2, "the step that the recipe has no more is forgotten"
    _, other = await builds.build(text % "b", name="test/other")
    assert other.done == [], "another image of the same steps is the same snapshot by another name"
    _, fresh = await builds.build(text % "b", cache=False)
    assert len(fresh.done) == 2
    assert len(await builds.provider.snapshots()) == 2


@pytest.mark.anyio
async def test_a_step_that_fails_shows_what_it_said_and_leaves_nothing(builds: ImageBuilds) -> None:
    text = 'commands = ["echo $$ > /first", "echo made > /half; echo no such luck >&2; %s"]'
    with pytest.raises(StepFailed, match="this ended with 3") as raised:
        await builds.build(text % "exit 3")
    assert b"no such luck" in raised.value.output
    assert "the steps before it are kept" in (raised.value.hint or "")
    assert len(await builds.kept()) == 1
    with pytest.raises(Exception, match="no local image"):
        await builds.host.image("test/made")
    _, mended = await builds.build(text % "test -e /half && echo there")
    assert mended.skipped == ["echo $$ > /first"]
    assert sorted(mended.said.splitlines()) == [b"no such luck", b"there"]  # from two pipes, in either order


@pytest.mark.anyio
async def test_half_of_a_failed_step_is_not_there_the_next_time(builds: ImageBuilds) -> None:
    text = 'commands = ["echo 1 > /first", "test ! -e /half && echo x > /half && %s"]'
    with pytest.raises(StepFailed):
        await builds.build(text % "false")
    _, mended = await builds.build(text % "true")
    assert len(mended.done) == 1


@pytest.mark.anyio
async def test_a_command_that_is_not_there_is_said(builds: ImageBuilds) -> None:
    with pytest.raises(StepFailed, match="cannot be run: no-such-tool --yes"):
        await builds.build('commands = [["no-such-tool", "--yes"]]')


@pytest.mark.anyio
async def test_a_shell_line_ends_at_its_first_failure(builds: ImageBuilds) -> None:
    with pytest.raises(StepFailed):
        await builds.build('commands = ["""\nfalse\necho went on\n"""]')


@pytest.mark.anyio
async def test_packages_are_left_to_the_images_own_manager(builds: ImageBuilds) -> None:
    (builds.folder / "apk").write_text('#!/bin/sh\necho "$@" >> /packages\n')
    (builds.folder / "apk").chmod(0o755)
    await builds.build(
        """
        [files]
        "/bin/apk" = "apk"
        [[steps]]
        packages = ["git", "build-base"]
        """
    )
    assert await builds.run("test/made", "cat /packages") == "add --no-cache -- git build-base\n"
    with pytest.raises(StepFailed) as raised:
        await builds.build('packages = ["git"]', name="test/none")
    assert b"no package manager" in raised.value.output


@pytest.mark.anyio
async def test_a_recipe_may_be_built_on_another(builds: ImageBuilds) -> None:
    await builds.build('commands = ["echo below > /below"]\n[env]\nA = "1"', name="test/below")
    recipe = parse_recipe('base = "test/below"\nnetwork = "none"\ncommands = ["echo $A$B > /above"]\n[env]\nB = "2"')
    plan = make_plan(recipe, await builds.host.image("test/below"), builds.folder)
    image = await build(builds.host, plan, "test/above", recipe.network, Silent())
    assert dict(image.config.env) == {"A": "1", "B": "2"}
    assert await builds.run("test/above", "cat /below /above") == "below\n12\n"


@pytest.mark.anyio
async def test_a_recipe_without_steps_gives_another_name_and_other_variables(builds: ImageBuilds) -> None:
    image, _ = await builds.build('[env]\nA = "1"')
    assert dict(image.config.env) == {"A": "1"}
    assert await builds.run("test/made", "echo $A") == "1\n"


@pytest.mark.anyio
async def test_a_recipe_takes_no_files_from_beside_its_folder(builds: ImageBuilds, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (builds.folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidRecipe, match="leads out"):
        await builds.build('[files]\n"/secret" = "link"')
