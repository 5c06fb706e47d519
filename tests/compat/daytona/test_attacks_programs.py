"""Programs of a sandbox that were replaced by others answer with anything. The server goes on for everybody else."""

from __future__ import annotations

import httpx
import pytest
from daytona import Sandbox

from holdfast.testing.server import ServerProcess

PATIENCE = 180.0
_HEAD = "#!/usr/bin/python3\nimport sys\nout = sys.stdout.buffer\n"
_BRANCHES = "branch '" * 2_000_000


@pytest.fixture
def replaced(sandbox: Sandbox, api: httpx.Client) -> str:
    """The toolbox of a sandbox that finds its own programs first."""
    path = "/home/daytona/.local/bin:/usr/local/bin:/usr/bin:/bin"
    answer = api.post(f"/toolbox/{sandbox.id}/env", json={"set": {"PATH": path}})
    assert answer.status_code == 200, answer.text
    return f"/toolbox/{sandbox.id}"


def _replace(sandbox: Sandbox, name: str, program: str) -> None:
    path = f"/home/daytona/.local/bin/{name}"
    sandbox.fs.upload_file((_HEAD + program).encode(), path)
    sandbox.process.exec(f"chmod 755 {path}")


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        ('sys.stderr.write("branch \'" * 2_000_000); sys.exit(1)', "status"),
        ('sys.stdout.write("remote branch " * 1_000_000); sys.exit(1)', "branches"),
        ('out.write(b"pathspec \'" * 1_500_000); sys.exit(1)', "history"),
        ("out.write(b'? x' + bytes(16_000_000))", "status"),
        ("out.write(b'? \\0' * 5_000_000)", "status"),
        ("out.write(b'# branch.ab + x\\0' * 9)", "status"),
        ("out.write(b'1 M\\0')", "status"),
        ("out.write(b'# branch.ab +' + b'9' * 9000 + b' -1\\0')", "status"),
        ("out.write(b'a ' * 8_000_000)", "branches"),
        ("out.write(b'\\n' * 16_000_000)", "remotes"),
        ("out.write(b'x' * 64_000_000)", "status"),
    ],
)
def test_a_git_that_was_replaced_fails_its_own_requests_only(
    daytona_server: ServerProcess, api: httpx.Client, sandbox: Sandbox, replaced: str, program: str, asked: str
) -> None:
    _replace(sandbox, "git", program)
    answer = api.get(f"{replaced}/git/{asked}", params={"path": "/tmp"}, timeout=PATIENCE)
    assert answer.status_code >= 400, answer.text[:200]
    assert len(answer.content) < 100_000
    assert "statusCode" in answer.json()
    assert httpx.get(f"{daytona_server.url}/health", trust_env=False, timeout=240).is_success


@pytest.mark.parametrize("unit", ['{"a":[[1]]},', "[],"])
def test_a_language_server_that_sends_millions_of_values_is_ended(
    daytona_server: ServerProcess, api: httpx.Client, sandbox: Sandbox, replaced: str, unit: str
) -> None:
    body = f"body = b'[' + b'{unit}' * (8_000_000 // {len(unit)} - 1) + b'1]'\n"
    told = "out.write(b'Content-Length: %d\\r\\n\\r\\n' % len(body) + body)\nout.flush()\nsys.stdin.buffer.read()\n"
    _replace(sandbox, "pylsp", body + told)
    asked = {"languageId": "python", "pathToProject": "/home/daytona"}
    answer = api.post(f"{replaced}/lsp/start", json=asked, timeout=PATIENCE)
    assert answer.status_code == 400
    assert "has ended" in answer.json()["message"]
    assert httpx.get(f"{daytona_server.url}/health", trust_env=False, timeout=240).is_success


def test_a_sh_that_was_replaced_fails_its_own_requests_only(api: httpx.Client, sandbox: Sandbox, replaced: str) -> None:
    _replace(sandbox, "pwd", "out.write(b'x' * 30_000_000)")
    answer = api.get(f"{replaced}/work-dir", timeout=PATIENCE)
    assert answer.status_code >= 400
    assert len(answer.content) < 100_000
