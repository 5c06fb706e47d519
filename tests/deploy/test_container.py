"""The server in a container with the settings of deploy/compose.yaml, at a real Docker daemon.

The image of deploy/Dockerfile comes from a registry, so here this machine's programs stand in for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.providers.docker.engine import PYTHON_IMAGE, DockerEngine

CHECKOUT = Path(__file__).parents[2]
HOLDFAST = (sys.executable, "-P", "-m", "holdfast")
HOME = "/var/lib/holdfast"
NAME = "holdfast-compose"
IMAGE = "holdfast-compose-image"
SECONDS = 300


def docker(engine: DockerEngine, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", "--host", engine.url, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert not check or done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout if check else done.stdout + done.stderr


@pytest.fixture
def compose_options() -> list[str]:
    """The options of `docker run` for what compose.yaml says of the service."""
    _, _, listed = (CHECKOUT / "deploy" / "compose.yaml").read_text().partition("security_opt:\n")
    options = [f"--security-opt={line.strip().removeprefix('- ')}" for line in _items(listed)]
    assert options
    return options


def _items(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.strip().startswith("- "):
            return
        yield line


@pytest.fixture
def server(engine: DockerEngine, compose_options: list[str]) -> Iterator[DockerEngine]:
    shown = dict.fromkeys(["/usr", str(CHECKOUT), sys.prefix, sys.base_prefix])
    volumes = [f"--volume={each}:{each}:ro" for each in shown]
    docker(engine, "volume", "create", NAME)
    own = [f"--volume={NAME}:{HOME}", "--env", f"HOLDFAST_HOME={HOME}", "--network", "none"]
    # The folder of the home gives its owner to the volume. A Python may be below /root, where the server has to get to.
    prepare = f"mkdir -p -m 700 {HOME}; chown 1000:1000 {HOME}; chmod a+x /root"
    docker(engine, "run", "--name", IMAGE, "--network", "none", PYTHON_IMAGE, "sh", "-c", prepare)
    docker(engine, "commit", IMAGE, IMAGE)
    docker(engine, "rm", IMAGE)
    docker(
        engine, "run", "--detach", "--name", NAME, "--user", "1000:1000", *compose_options, *own, *volumes,
        "--env", "HOLDFAST_LISTEN_HOST=0.0.0.0", IMAGE, *HOLDFAST, "up",
    )  # fmt: skip
    try:
        yield engine
    finally:
        sys.stdout.write(docker(engine, "logs", NAME, check=False))
        docker(engine, "rm", "--force", NAME)
        docker(engine, "volume", "rm", NAME)


def wait_until_it_serves(engine: DockerEngine) -> None:
    asking = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8484/health', timeout=240)"
    loop = f'until "{sys.executable}" -c "{asking}" 2>/dev/null; do sleep 0.1; done'
    docker(engine, "exec", NAME, "timeout", str(SECONDS), "sh", "-c", loop)


@pytest.mark.box
@pytest.mark.slow
def test_boxes_start_in_a_container_with_the_settings_of_compose(server: DockerEngine) -> None:
    wait_until_it_serves(server)
    docker(server, "exec", NAME, *HOLDFAST, "box", "create", "--key", "one")
    said = docker(server, "exec", NAME, *HOLDFAST, "box", "exec", "one", "--", "sh", "-c", "echo $((6 * 7)) | tee kept")
    assert said == "42\n"
    docker(server, "restart", NAME)  # ends the box, and keeps its files
    wait_until_it_serves(server)
    docker(server, "exec", NAME, *HOLDFAST, "box", "start", "one")
    assert docker(server, "exec", NAME, *HOLDFAST, "box", "exec", "one", "--", "cat", "kept") == "42\n"
