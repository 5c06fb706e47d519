"""Which files run without being started."""

from __future__ import annotations

import pytest

from holdfast.repositories.startup_files import why_it_runs


@pytest.mark.parametrize(
    "path",
    [
        ".github/workflows/ci.yml", ".github/actions/setup/action.yml", ".gitea/workflows/a.yaml", ".gitlab-ci.yml",
        ".circleci/config.yml", "azure-pipelines.yml", "Jenkinsfile", ".vscode/tasks.json", ".vscode/settings.json",
        "sub/.vscode/tasks.json", "project.code-workspace", ".devcontainer/devcontainer.json", ".envrc", "sub/.envrc",
        "mise.toml", ".husky/pre-commit", ".pre-commit-config.yaml", ".claude/settings.json", ".mcp.json",
        ".codex/config.toml", "holdfast.toml", "sub/holdfast.toml",
        # as other file systems read them
        ".GitHub/Workflows/ci.yml", ".vscode /tasks.json.", ".env\u200crc", ".VSCODE/Tasks.JSON",
    ],
)  # fmt: skip
def test_what_runs_by_itself_is_known(path: str) -> None:
    assert why_it_runs(path.encode())


@pytest.mark.parametrize(
    "path",
    [
        "Makefile", "package.json", "conftest.py", "src/main.py", ".github/CODEOWNERS", ".github/workflows.md",
        ".vscode/launch.json", "docs/.vscode.md", "my.envrc", "README.md", "holdfast.toml.md", "tests/jenkinsfile.py",
    ],
)  # fmt: skip
def test_what_people_start_themselves_is_not_pointed_out(path: str) -> None:
    assert why_it_runs(path.encode()) is None
