"""Templates of interpreters: declared, built in real boxes by real pips, and built when they are wanted."""

from __future__ import annotations

import asyncio
import base64
import ensurepip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.images.image_builds import Steps, pieces
from tests.providers.docker.engine import python_files
from tests.providers.local.networking import networked

from holdfast import Interpreter
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.api.ids import new_id
from holdfast.api.images import Image
from holdfast.cli.app import run as run_command
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.images import build, make_plan, parse_recipe
from holdfast.images.build_host import BuildHost, ProviderBuildHost
from holdfast.images.errors import InvalidRecipe, StepFailed
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.events import TEMPLATE
from holdfast.interpreter.workspace import templates as interpreter_templates
from holdfast.interpreter.workspace.templates import (
    BASE,
    BUILT_IN,
    DECLARED,
    Status,
    Template,
    TemplateFiles,
    Templates,
    status_of,
)
from holdfast.interpreter.workspace.wheels import Python, check_requirement
from holdfast.providers.local import LocalProvider
from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("interpreter-templates")]


class Told(Steps):
    """All that a build said."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        self.all.append(f"{step} {detail}")

    def skip(self, step: str, detail: str = "") -> None:
        self.all.append(f"{step} {detail}")

    def end(self, summary: str = "") -> None:
        self.all.append(summary)


needs_pip = pytest.mark.skipif(shutil.which("pip") is None, reason="this machine has no pip to bring wheels by")


# --- what they say ---


def test_packages_are_names_and_versions_and_nothing_else() -> None:
    for text in ("pandas", "scikit-learn", "pandas>=2,<3", "a[b,c]==1.0.*", "ruamel.yaml", "x >= 1", "torch==2.1+cpu"):
        assert check_requirement(text) == text.replace(" ", "")
    for wrong in (
        "",
        "-r",
        "--index-url=x",
        "./x",
        "/x",
        "x @ https://e",
        "https://e/x.whl",
        "x;y",
        "x\n",
        "x==",
        "$(x)",
    ):
        with pytest.raises(InvalidInterpreter):
            check_requirement(wrong)


def test_names_are_those_of_images() -> None:
    assert Template("data-2.x").image == "template/data-2.x"
    for wrong in ("", "Data", "../x", "a/b", "a:b", "-a", "x" * 80, "a--"):
        with pytest.raises(InvalidInterpreter):
            Template(wrong)
    with pytest.raises(InvalidInterpreter, match="packages or a recipe"):
        Template("x", ("six",), Path("x"))


def test_wheels_fit_the_c_library_of_the_image() -> None:
    python = Python((3, 11), "x86_64", 18)
    assert python.platforms[:2] == ("manylinux_2_18_x86_64", "manylinux_2_17_x86_64")
    assert python.platforms[-4:] == (
        "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"
    )  # fmt: skip
    assert Python((3, 11), "x86_64", None).platforms == ()


def test_a_template_is_ready_where_its_image_is_of_what_it_says() -> None:
    def image(**labels: str) -> Image:
        return Image("template/x", "sha256:0", (), 0, 0, labels=labels)

    digest = Template("x", ("a", "b")).digest()
    assert digest == Template("other", ("b", "a")).digest()
    assert digest != Template("x", ("a",)).digest()
    assert status_of(digest, None) is Status.MISSING
    assert status_of(digest, image()) is Status.INACTIVE
    assert status_of(digest, image(**{DECLARED: "another"})) is Status.INACTIVE
    assert status_of(digest, image(**{DECLARED: digest})) is Status.READY


def test_declarations_are_kept_beside_the_built_in_ones(tmp_path: Path) -> None:
    declared = TemplateFiles(tmp_path / "templates")
    assert [each.name for each in declared.all()] == ["data", "python", "rlm"]
    assert declared.get("data").packages == ("numpy", "pandas", "matplotlib")
    declared.keep(Template("mine", ("six",)))
    declared.keep(Template("data", ("polars",)))
    declared.keep(Template("recipe", recipe=tmp_path / "image.toml"))
    assert [each.name for each in declared.all()] == ["data", "mine", "python", "recipe", "rlm"]
    assert declared.get("data") == Template("data", ("polars",))
    assert declared.get("recipe").recipe == tmp_path / "image.toml"
    declared.forget("data")
    declared.forget("../../x")
    assert declared.get("data").built_in
    for name in ("nowhere", "../templates/mine", "mine.json", ""):
        with pytest.raises(InvalidInterpreter, match="there is no template") as raised:
            declared.get(name)
        assert "data, mine, python, recipe, rlm" in (raised.value.hint or "")
    for text in (
        "{",
        "[]",
        '{"name": "other"}',
        '{"name": "mine", "packages": [1]}',
        '{"name": "mine", "packages": 1}',
    ):
        (tmp_path / "templates" / "mine.json").write_text(text)
        with pytest.raises(InvalidInterpreter, match=r"mine\.json cannot be read"):
            declared.get("mine")


def test_the_template_for_dspy_has_the_versions_that_are_tested() -> None:
    locked = (Path(__file__).parents[2] / "requirements" / "dev.txt").read_text()
    packages = next(each for each in BUILT_IN if each.name == "rlm").packages
    assert [each.partition("==")[0] for each in packages] == ["dspy", "httpx", "pydantic"]
    for each in packages:
        assert re.search(rf"^{re.escape(each)} ", locked, re.MULTILINE), f"{each} is not locked: change the template"


# --- images ---


def a_wheel(folder: Path, name: str, version: str) -> None:
    """A package of one module, which says its version."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: hashlib.sha256(text.encode()).digest() for path, text in files.items()}
    record = [
        f"{path},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{len(files[path])}"
        for path, digest in digests.items()
    ]
    files[f"{info}/RECORD"] = "\n".join((*record, f"{info}/RECORD,,", ""))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def pip_with(folder: Path) -> dict[str, str]:
    """Variables for a pip that knows this folder and nothing else."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
    }


@pytest.fixture(scope="session")
def python_and_pip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A root filesystem with Python and pip, in the place of a Debian that would take half a minute to make."""
    bundled = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    if not bundled:
        pytest.skip("this Python brings no pip along")
    pip = tmp_path_factory.mktemp("pip")
    with zipfile.ZipFile(bundled[0]) as wheel:
        wheel.extractall(pip / "modules")
    _compile_what_is_used(pip)
    target = io.BytesIO(python_files())
    with tarfile.open(fileobj=target, mode="a") as tar:
        library = next(name for name in tar.getnames() if name.endswith("/os.py")).removesuffix("/os.py")
        for path in sorted(each for each in (pip / "modules").rglob("*") if each.is_file()):
            member = tar.gettarinfo(path, f"{library}/{path.relative_to(pip / 'modules')}")
            with path.open("rb") as file:
                tar.addfile(member, file)
    return target.getvalue()


def _compile_what_is_used(pip: Path) -> None:
    """By installing something once, so that no box has to."""
    a_wheel(pip / "wheels", "tiny", "1.0")
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    command = [python, "-m", "pip", "install", "--target", str(pip / "installed"), "tiny"]
    environment = {**pip_with(pip / "wheels"), "PYTHONPATH": str(pip / "modules")}
    subprocess.run(command, cwd=pip, env=environment, check=True, capture_output=True, timeout=120)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
    """How often the base was made: no test reaches for the packages of a distribution."""
    made: list[str] = []

    async def make(host: BuildHost, name: str, packages: Sequence[str], **more: object) -> Image:
        made.append(name)
        assert "python3" in packages
        return await host.import_image(name, pieces(request.getfixturevalue("python_and_pip")))

    monkeypatch.setattr(interpreter_templates, "build_of_machine", make)
    return made


@pytest.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path_factory.mktemp("templates") / "home") as provider:
        yield provider
        assert await provider.find() == [], "a build leaves no box behind"


def templates(provider: LocalProvider, folder: Path) -> Templates:
    return Templates(
        ProviderBuildHost(provider),
        TemplateFiles(folder / "declared"),
        cache=folder / "cache",
        environment=pip_with(folder / "wheels"),
    )


async def says(provider: LocalProvider, image: str, module: str) -> str:
    box = await provider.create(BoxSpec(image=image), id="says")
    try:
        done = await box.exec(("python3", "-c", f"import {module}; print({module}.version)"), cwd="/")
        assert done.ok, done.stderr.decode()
        return done.text.strip()
    finally:
        await box.delete()


@needs_pip
async def test_a_template_is_built_when_it_is_wanted_and_again_when_it_says_something_else(
    provider: LocalProvider, tmp_path: Path, made: list[str]
) -> None:
    known, wheels = templates(provider, tmp_path), tmp_path / "wheels"
    a_wheel(wheels, "tiny", "1.0")
    known.files.keep(Template("mine", ("tiny",)))
    steps = Told()
    assert await known.resolve("mine", steps) == "template/mine"
    assert "mine is missing: building it" in str(steps.all)
    assert "1 wheel" in steps.all
    before = len(made)
    assert await says(provider, "template/mine", "tiny") == "1.0"

    steps = Told()
    assert await known.resolve("mine", steps) == "template/mine"
    assert steps.all == [], "what is ready is there at once"

    a_wheel(wheels, "tiny", "2.0")
    a_wheel(wheels, "other", "7.0")
    assert await known.resolve("mine") == "template/mine"
    assert await says(provider, "template/mine", "tiny") == "1.0", "nothing is upgraded behind anybody's back"
    assert len(made) == before
    await known.build(known.files.get("mine"), Steps(), again=True)
    assert made[before:] == [BASE], "what it begins with is brought up to date, too"
    assert await says(provider, "template/mine", "tiny") == "2.0"

    known.files.keep(Template("mine", ("tiny<2", "other")))
    assert (await known.inspect(known.files.get("mine"))).status is Status.INACTIVE
    steps = Told()
    await known.resolve("mine", steps)
    assert "mine is inactive: building it" in str(steps.all)
    assert await says(provider, "template/mine", "tiny") == "1.0"
    assert await says(provider, "template/mine", "other") == "7.0"

    await known.remove(known.files.get("mine"))
    assert [each.template.name for each in await known.list()] == ["data", "python", "rlm"]
    with pytest.raises(InvalidInterpreter, match="there is no template mine"):
        await known.resolve("mine")


@needs_pip
async def test_the_template_for_dspy_is_built_at_its_own_versions(provider: LocalProvider, tmp_path: Path) -> None:
    known, wheels = templates(provider, tmp_path), tmp_path / "wheels"
    wanted = [each.partition("==") for each in known.files.get("rlm").packages]
    for name, _, version in wanted:
        a_wheel(wheels, name, version)
        a_wheel(wheels, name, "99.0")
    await known.resolve("rlm", Steps())
    for name, _, version in wanted:
        assert await says(provider, "template/rlm", name) == version
    await known.remove(known.files.get("rlm"))


async def test_one_without_packages_is_the_base(
    provider: LocalProvider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = templates(provider, tmp_path)
    assert await known.resolve("python") == "template/python"
    assert "template python is missing: building it" in caplog.text, "who watches no progress is told all the same"
    assert (await known.inspect(known.files.get("python"))).status is Status.READY


async def test_a_recipe_makes_one_too(provider: LocalProvider, tmp_path: Path) -> None:
    known, recipe = templates(provider, tmp_path), tmp_path / "image.toml"
    recipe.write_text(
        f'base = "{BASE}"\nnetwork = "none"\ncommands = ["echo version = 5 > /mine.py"]\n[env]\nPYTHONPATH = "/"'
    )
    template = Template("by-recipe", recipe=recipe)
    known.files.keep(template)
    await known.resolve("by-recipe", Steps())
    assert await says(provider, "template/by-recipe", "mine") == "5"
    recipe.write_text(recipe.read_text().replace("5", "6"))
    assert (await known.inspect(template)).status is Status.INACTIVE
    await known.resolve("by-recipe", Steps())
    assert await says(provider, "template/by-recipe", "mine") == "6"
    recipe.unlink()
    with pytest.raises(InvalidRecipe, match="cannot be read"):
        await known.resolve("by-recipe")


@needs_pip
async def test_what_has_no_wheel_is_left_to_the_box_and_its_failure_is_shown(
    tmp_path: Path, python_and_pip: bytes
) -> None:
    async with networked(tmp_path) as net:
        await net.provider.images.import_archive("raw", pieces(python_and_pip))
        host = ProviderBuildHost(net.provider)
        # Its pip asks nobody, which is quicker than a network that is closed.
        recipe = parse_recipe('base = "raw"\nnetwork = "none"\n[env]\nPIP_NO_INDEX = "1"')
        await build(host, make_plan(recipe, await host.image("raw"), tmp_path), BASE, recipe.network, Told())
        known = templates(net.provider, tmp_path)
        (tmp_path / "wheels").mkdir()
        known.files.keep(Template("missing", ("no-such-package-anywhere",)))
        steps = Told()
        with pytest.raises(StepFailed) as raised:
            await known.resolve("missing", steps)
        assert "the box downloads them" in str(steps.all)
        assert b"no-such-package-anywhere" in raised.value.output
        assert (await known.inspect(known.files.get("missing"))).status is Status.MISSING


# --- for an interpreter, and the command ---


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "home") as server:
        yield server.home


@pytest.fixture
def small(home: Path, tmp_path: Path, python_and_pip: bytes) -> Iterator[str]:
    """A template that is declared, and not built yet."""

    async def bring() -> None:
        host = await ClientHost.of_home(home)
        await host.client.images.import_archive("raw", pieces(python_and_pip))
        await host.close()

    asyncio.run(bring())
    name, recipe = f"small-{new_id('x')[2:]}", tmp_path / "image.toml"
    command = f"echo version = 5 > /m.py; : {name}"  # so that no step of another is taken for it
    recipe.write_text(f'base = "raw"\nnetwork = "none"\ncommands = ["{command}"]\n[env]\nPYTHONPATH = "/"')
    TemplateFiles(home / "templates").keep(Template(name, recipe=recipe))
    yield name
    TemplateFiles(home / "templates").forget(name)


async def test_who_looks_on_sees_how_the_template_is_built(home: Path, small: str) -> None:
    host = await ClientHost.of_home(home)
    for expected in (True, False):
        interpreter, seen = Interpreter(template=small, host=host), list[Mapping[str, Any]]()

        async def look_on(interpreter: Interpreter = interpreter, seen: list[Mapping[str, Any]] = seen) -> None:
            async for event in interpreter.events.follow():
                seen.append(event)

        looking = asyncio.create_task(look_on())
        await asyncio.sleep(0)  # until it looks
        async with interpreter:
            assert (await interpreter.execute("import m; m.version")).value == 5
        await looking
        told = [each for each in seen if each["type"] == TEMPLATE]
        assert bool(told) is expected, "what is ready is not built"
        if told:
            assert (told[0]["template"], told[0]["detail"]) == (small, f"{small} is missing: building it")
            assert {"began", "ended"} == {each["status"] for each in told}
            assert any("version = 5" in each["detail"] for each in told), told
            assert seen.index(told[-1]) < [each["type"] for each in seen].index("interpreter.started")
    await host.close()


def test_the_command_that_needs_a_template_shows_how_it_is_built(
    home: Path, small: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "code.py"
    code.write_text("import m; m.version")
    for expected in (True, False):
        capfd.readouterr()
        assert run_command(["interpreter", "run", str(code), "--template", small, "--home", str(home)]) == 0
        said = capfd.readouterr()
        assert said.out == "5\n"
        assert said.err.count("is missing: building it") == expected
        assert ("version = 5" in said.err) is expected


@pytest.fixture
def command(home: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> str:
        capfd.readouterr()
        code = run_command(["interpreter", "template", *arguments, "--home", str(home)])
        said = capfd.readouterr()
        if code:
            raise CommandError(said.err, exit=Exit(code))
        return said.out

    return run


@needs_pip
def test_the_command_builds_lists_shows_and_removes(
    command: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    a_wheel(wheels, "tiny", "1.0")
    for name, value in pip_with(wheels).items():
        if name.startswith("PIP_"):
            monkeypatch.setenv(name, value)
    assert command("build", "mine", "--package", "tiny>=1") == "template/mine\n"
    shown = json.loads(command("show", "mine", "--json"))
    assert (shown["status"], shown["packages"], shown["builtIn"]) == ("ready", ["tiny>=1"], False)
    (tmp_path / "image.toml").write_text(f'base = "{BASE}"\nnetwork = "none"\ncommands = ["date +%N > /made"]')
    assert command("build", "recipe", "--recipe", str(tmp_path)) == "template/recipe\n"
    first = json.loads(command("show", "recipe", "--json"))["image"]["digest"]
    assert command("build", "recipe") == "template/recipe\n", "it is known by its name now"
    assert json.loads(command("show", "recipe", "--json"))["image"]["digest"] == first
    assert command("refresh", "recipe") == "template/recipe\n"
    assert json.loads(command("show", "recipe", "--json"))["image"]["digest"] != first
    listed = {each["name"]: each["status"] for each in json.loads(command("list", "--json"))["templates"]}
    assert listed == {"data": "missing", "mine": "ready", "python": "missing", "recipe": "ready", "rlm": "missing"}
    assert "numpy pandas matplotlib" in command("list")
    with pytest.raises(CommandError, match="is not a Python package"):
        command("build", "mine", "--package", "--index-url=http://x")
    assert json.loads(command("show", "mine", "--json"))["packages"] == ["tiny>=1"], "what failed takes no place"
    command("remove", "mine")
    with pytest.raises(CommandError, match="there is no template mine") as raised:
        command("show", "mine")
    assert raised.value.exit == 2
