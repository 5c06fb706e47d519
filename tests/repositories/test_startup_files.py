"""Which files run without being started."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.repositories.startup_names import NAMES

from holdfast.repositories import startup_files as module
from holdfast.repositories.startup_files import startup_files, why_it_runs

UNSEEN = ["\u200c", "\u200d", "\u200e", "\u202e", "\u206a", "\ufeff"]


@pytest.mark.parametrize("path", NAMES)
def test_each_of_these_names_is_known(path: str) -> None:
    assert why_it_runs(path.encode())
    assert why_it_runs(b"some/folder/" + path.encode())


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in module._NAMES])
def test_no_pattern_is_there_without_a_name(pattern: bytes) -> None:
    whole = re.compile(rb"(?:.*/)?(?:%b)" % pattern, re.DOTALL)
    others = [".lvimrc", ".codex/hooks.json", "lefthook.toml", ".build.yml", "mise.dev.toml", ".autoenv"]
    assert any(whole.fullmatch(module._seen(name.encode())) for name in [*NAMES, *others])


@given(st.sampled_from(NAMES), st.data())
def test_no_spelling_that_a_file_system_reads_alike_hides_a_name(name: str, data: st.DataObject) -> None:
    parts = []
    for part in name.split("/"):
        drawn = "".join(
            (each.upper() if data.draw(st.booleans()) else each.lower()) + data.draw(st.sampled_from(["", "", *UNSEEN]))
            for each in part
        )
        parts.append(drawn + data.draw(st.text(". ", max_size=3)))
    assert why_it_runs("/".join(parts).encode())


@given(st.sampled_from(NAMES), st.data())
def test_no_folder_of_a_name_comes_through_a_link(name: str, data: st.DataObject) -> None:
    parts = name.split("/")
    if len(parts) == 1:
        links, path = {name: "real"}, "real"
    else:
        at = data.draw(st.integers(1, len(parts) - 1))
        links, path = {"/".join(parts[:at]): "../" * (at - 1) + "real"}, "/".join(["real", *parts[at:]])
    told = {link.encode(): target.encode() for link, target in links.items()}
    assert startup_files([path.encode()], told)


@pytest.mark.parametrize(
    "path",
    [
        ".github/workflows/ci.yml", ".github/actions/setup/action.yml", ".gitea/workflows/a.yaml", ".gitlab-ci.yml",
        ".circleci/config.yml", "azure-pipelines.yml", "Jenkinsfile", ".vscode/tasks.json", ".vscode/settings.json",
        "sub/.vscode/tasks.json", "project.code-workspace", ".devcontainer/devcontainer.json", ".envrc", "sub/.envrc",
        "mise.toml", ".husky/pre-commit", ".pre-commit-config.yaml", ".claude/settings.json", ".mcp.json",
        ".codex/config.toml", "holdfast.toml", "sub/holdfast.toml",
        ".helix/languages.toml", ".gemini/settings.json", ".codex/hooks.json", ".zed/settings.json", ".zed/tasks.json",
        ".kiro/settings/mcp.json", ".roo/mcp.json", ".nvimrc", ".exrc", ".vimrc", ".lvimrc", ".lazy.lua",
        ".dir-locals.el", ".config/mise/config.toml", ".mise/config.toml", "mise.dev.toml", ".mise.local.toml",
        ".config/mise/conf.d/x.toml", "lefthook.json", "lefthook.toml", "lefthook-local.yml", ".lefthook-local.yaml",
        ".build.yml", ".builds/a.yml", ".tekton/a.yaml", ".semaphore/semaphore.yml", ".teamcity/settings.kts",
        ".run/x.run.xml", ".idea/runConfigurations/x.xml", ".github/workflows/a\nb.yml",
        # as other file systems read them
        ".GitHub/Workflows/ci.yml", ".vscode /tasks.json.", ".env\u200crc", ".VSCODE/Tasks.JSON",
    ],
)  # fmt: skip
def test_what_runs_by_itself_is_known(path: str) -> None:
    assert why_it_runs(path.encode())


@pytest.mark.parametrize(
    "path",
    [
        "Makefile", "tests/test_main.py", "src/main.py", "pyproject.toml", ".env.example", ".gitignore",
        ".github/CODEOWNERS", ".github/workflows.md",
        ".vscode/launch.json", "docs/.vscode.md", "my.envrc", "README.md", "holdfast.toml.md", "tests/jenkinsfile.py",
        "src/mise.py", "promise.toml", "build.yml", ".idea/misc.xml", "src/settings.json", ".run/notes.md",
    ],
)  # fmt: skip
def test_what_people_start_themselves_is_not_pointed_out(path: str) -> None:
    assert why_it_runs(path.encode()) is None


@pytest.mark.parametrize(
    ("path", "links"),
    [
        # links of the change, and files behind them
        (".vscode", {".vscode": "assets/v"}),
        ("assets/v/tasks.json", {".vscode": "assets/v"}),
        ("sub/.Claude", {"sub/.Claude": "../c"}),
        ("assets/w/ci.yml", {".github/workflows": "../assets/w"}),
        (".github", {".github": "g"}),
        # links of the folder
        ("config/envrc", {".envrc": "config/envrc"}),
        ("config/envrc", {"app/.envrc": "./../config//envrc"}),
        # one after the other, in a folder behind a link, and around
        ("assets/v/tasks.json", {".vscode": "one", "one": "two/v", "two": "assets"}),
        ("two", {".vscode": "two/v", "two": "assets"}),
        ("w/ci.yml", {".github": "g", "g/workflows": "../w"}),
        ("tasks.json", {"sub/.vscode": ".."}),
        ("ci.yml", {".github": ".", "workflows": "."}),
        ("real/v/tasks.json", {".vscode": "far/../v", "far": "real/deep"}),
        # as other file systems read them
        ("assets/V/Tasks.json", {".VSCode": "Assets/v"}),
    ],
)
def test_a_link_hides_nothing_that_runs_by_itself(path: str, links: dict[str, str]) -> None:
    told = {name.encode(): target.encode() for name, target in links.items()}
    assert list(startup_files([path.encode()], told)) == [path.encode()]


@pytest.mark.parametrize(
    ("path", "links"),
    [
        ("assets/v/readme.md", {".vscode": "assets/v"}),
        ("assets/vv/tasks.json", {".vscode": "assets/v"}),
        ("assets/v/tasks.json", {"other": "assets/v", ".vscode": "/etc/v", ".claude": "../../out", ".run": ".run"}),
        ("latest", {"latest": "v1"}),
    ],
)
def test_other_links_are_not_pointed_out(path: str, links: dict[str, str]) -> None:
    told = {name.encode(): target.encode() for name, target in links.items()}
    assert startup_files([path.encode()], told) == {}


def test_links_beyond_number_hide_nothing_either() -> None:
    links = {b".vscode/%d" % number: b"../a" for number in range(5000)} | {b".vscode/tasks.json": b"../b"}
    links |= {b"s/%d" % number: b"." for number in range(5000)}
    assert b"b" in startup_files([b"b"], links)
