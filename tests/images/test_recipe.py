"""Recipes: what they may say, what they are told where they may not, and what their steps depend on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.api.box.network import Network
from holdfast.api.images import Image, ImageConfig
from holdfast.images import workstation
from holdfast.images.errors import InvalidRecipe
from holdfast.images.plan import CommandStep, FilesStep, PackagesStep, make_plan
from holdfast.images.recipe import Group, parse_recipe, read_recipe

WHOLE = """
base = "holdfast/base"
name = "team/web:1"
packages = ["libpq-dev", "g++"]
commands = ["make install", ["tool", "--yes"]]
workdir = "/opt/app/"
network = ["default", "*.example.com"]

[files]
"/opt/app" = "app"

[env]
GREETING = "hello there"

[[steps]]
commands = ["app --warm-up"]
"""
BASE = Image("holdfast/base", "sha256:" + "a" * 64, (), 0, 0, ImageConfig({"PATH": "/bin"}))


def test_a_recipe_is_read() -> None:
    recipe = parse_recipe(WHOLE)
    assert (recipe.base, recipe.name, recipe.workdir) == ("holdfast/base", "team/web:1", "/opt/app")
    assert recipe.env == {"GREETING": "hello there"}
    assert recipe.network.allow == ("default", "*.example.com")
    assert recipe.groups == (
        Group(
            ("libpq-dev", "g++"),
            {"/opt/app": "app"},
            (("/bin/sh", "-e", "-c", "make install"), ("tool", "--yes")),
        ),
        Group(commands=(("/bin/sh", "-e", "-c", "app --warm-up"),)),
    )


def test_a_recipe_may_reach_the_default_list_unless_it_says_otherwise() -> None:
    assert parse_recipe('base = "a"').network.allow == ("default",)
    assert parse_recipe('base = "a"\nnetwork = "none"').network.mode is Network.NONE
    assert parse_recipe('base = "a"\nnetwork = "open"').network.mode is Network.OPEN
    assert parse_recipe('base = "a"\nnetwork = "allow"').network.allow == ("default",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "starts from"),
        ("base = ", "invalid TOML"),
        ('base = "UPPER"', "cannot name an image"),
        ("base = 1", "cannot name an image"),
        ('base = "a"\nname = "../x"', "cannot name an image"),
        ('base = "a"\npackges = []', "has no key packges"),
        ('base = "a"\n[[steps]]\nbase = "b"', "a step has no key base"),
        ('base = "a"\nsteps = 1', "steps must be tables"),
        ('base = "a"\npackages = "git"', "packages must be a list"),
        ('base = "a"\npackages = ["--allow-unauthenticated"]', "is not a valid package name"),
        ('base = "a"\npackages = ["git; rm -rf /"]', "is not a valid package name"),
        ('base = "a"\ncommands = "make"', "commands must be a list"),
        ('base = "a"\ncommands = [""]', "is not a command"),
        ('base = "a"\ncommands = [[]]', "is not a command"),
        ('base = "a"\ncommands = [["a", 1]]', "is not a command"),
        ('base = "a"\nworkdir = "opt"', "is not a path in the image"),
        ('base = "a"\nworkdir = "/opt/../etc"', "is not a path in the image"),
        ('base = "a"\nfiles = []', "files must be a table"),
        ('base = "a"\n[files]\n"opt" = "x"', "is not a path in the image"),
        ('base = "a"\n[files]\n"/opt" = "/etc/passwd"', "must be in the recipe's folder"),
        ('base = "a"\n[files]\n"/opt" = "../x"', "must be in the recipe's folder"),
        ('base = "a"\n[files]\n"/opt" = "~/x"', "must be in the recipe's folder"),
        ('base = "a"\n[files]\n"/opt" = 1', "must be in the recipe's folder"),
        ('base = "a"\n[env]\n"A B" = "x"', "the variable 'A B' is invalid"),
        ('base = "a"\n[env]\nA = 1', "the variable 'A' is invalid"),
        ('base = "a"\nnetwork = "everything"', "is not a network setting"),
        ('base = "a"\nnetwork = ["not a host!"]', "is not a network rule"),
        ('base = "a"\nnetwork = 1', "is not a network setting"),
    ],
)
def test_an_invalid_recipe_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(InvalidRecipe, match=message):
        parse_recipe(text)


def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecipe, match="cannot be read: no such file"):
        read_recipe(tmp_path / "missing.toml")
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRecipe, match="is not a text file"):
        read_recipe(path)
    path.write_text("base = 1")
    with pytest.raises(InvalidRecipe, match=r"binary\.toml: base: "):
        read_recipe(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    app = tmp_path / "recipe" / "app"
    app.mkdir(parents=True)
    (app / "main.py").write_text("print('hello')\n")
    (app / "link").symlink_to("main.py")
    return app.parent


def hashes(folder: Path, text: str = WHOLE, base: Image = BASE) -> list[str]:
    plan = make_plan(parse_recipe(text), base, folder)
    return [*(step.hash for step in plan.steps), plan.hash]


def test_the_steps_of_a_recipe_come_in_their_order(folder: Path) -> None:
    plan = make_plan(parse_recipe(WHOLE), BASE, folder)
    assert [type(step) for step in plan.steps] == [PackagesStep, FilesStep, CommandStep, CommandStep, CommandStep]
    assert [step.what for step in plan.steps] == [
        "libpq-dev g++", "/opt/app", "make install", "tool --yes", "app --warm-up"
    ]  # fmt: skip
    assert plan.config == ImageConfig({"PATH": "/bin", "GREETING": "hello there"}, "/opt/app")
    assert hashes(folder) == hashes(folder)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        pytest.param(('"libpq-dev"', '"libpq5"'), 0, id="a package"),
        pytest.param(("make install", "make all install"), 2, id="a command"),
        pytest.param(("--yes", "--no"), 3, id="a later command"),
        pytest.param(("--warm-up", "--cool-down"), 4, id="the last command"),
        pytest.param(("hello there", "bye"), 0, id="a variable"),
        pytest.param(('"/opt/app/"', '"/opt"'), 2, id="the folder of commands"),
        pytest.param(('["default", "*.example.com"]', '"none"'), 0, id="the network"),
        pytest.param(('"/opt/app" =', '"/srv/app" ='), 1, id="where files go"),
        pytest.param(('name = "team/web:1"', 'name = "other"'), 6, id="the name"),
    ],
)
def test_a_change_is_felt_from_its_step_on(folder: Path, change: tuple[str, str], kept: int) -> None:
    before, after = hashes(folder), hashes(folder, WHOLE.replace(*change))
    assert [one == other for one, other in zip(before, after, strict=True)] == [True] * kept + [False] * (6 - kept)


def test_another_base_changes_everything(folder: Path) -> None:
    other = hashes(folder, base=replace(BASE, digest="sha256:" + "b" * 64))
    assert not set(hashes(folder)) & set(other)


def test_what_is_in_files_counts_and_when_they_were_written_does_not(folder: Path) -> None:
    path = folder / "app" / "main.py"
    before = hashes(folder)
    os.utime(path, (1, 1))
    assert hashes(folder) == before
    path.chmod(0o755)
    changed = hashes(folder)
    assert (changed[0], changed[1] != before[1]) == (before[0], True)
    path.write_text("print('bye')\n")
    assert hashes(folder)[1] not in (before[1], changed[1])
    (folder / "app" / "link").unlink()
    (folder / "app" / "link").symlink_to("other")
    assert hashes(folder)[1] not in (before[1], changed[1])


def test_files_that_are_not_the_recipes_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (folder / "out").symlink_to(tmp_path)
    recipe = 'base = "a"\n[files]\n"/x" = "%s"'
    with pytest.raises(InvalidRecipe, match="there is no missing"):
        hashes(folder, recipe % "missing")
    for source in ("out", "out/secret"):
        with pytest.raises(InvalidRecipe, match="leads out of"):
            hashes(folder, recipe % source)
    os.mkfifo(folder / "app" / "pipe")
    with pytest.raises(InvalidRecipe, match="neither a file"):
        hashes(folder)


def test_the_recipe_of_a_workstation_is_valid_and_starts_from_the_base() -> None:
    recipe = read_recipe(workstation.RECIPE)
    assert (recipe.base, recipe.name) == (BASE.name, workstation.WORKSTATION)
