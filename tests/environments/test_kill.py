"""A server that is killed in a setup leaves nothing half: no box, and a snapshot that is whole or not there."""

from __future__ import annotations

import json
import threading
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from tests.environments.conftest import Index
from tests.environments.mortal import STEPS, fate, outside_of_a_mortal
from tests.providers.local.world import Answer, Request
from tests.server.egress_world import names_beside, outside
from tests.serving import serving

from holdfast.client import HoldfastError, SyncClient
from holdfast.testing.server import ServerFailed, ServerProcess

pytestmark = pytest.mark.box

FETCH = "import urllib.request as r; r.urlopen('http://registry.test/held')"
TEXT = f"""\
setup = ["echo one > one", \'\'\'python3 -c "{FETCH}"\'\'\', "echo three > three"]
egress = ["registry.test"]
"""


def client_of(server: ServerProcess) -> SyncClient:
    return SyncClient(server.url, api_key=server.api_key, retry_seconds=0)


def left(client: SyncClient) -> tuple[int, int]:
    """Returns how many boxes and snapshots of setups there are."""
    boxes = len(list(client.boxes.list(labels={"environment-setup-box": "1"})))
    return boxes, len([each for each in client.boxes.snapshots() if "environment-setup" in each.labels])


def test_a_server_killed_in_a_setup_leaves_nothing_and_the_next_one_builds_it(tmp_path: Path) -> None:
    home, index, reached, go_on = tmp_path / "home", Index(), threading.Event(), threading.Event()

    def hold(request: Request) -> Answer:
        reached.set()
        go_on.wait(60)
        return Answer(b"go on")

    index.site = hold
    with index.serve() as port, serving_with(home, port) as server:
        with client_of(server) as client:
            client.environments.save("held", TEXT)

        def build() -> None:
            with suppress(HoldfastError), client_of(server) as other:
                other.environments.build("held")

        building = threading.Thread(target=build)
        building.start()
        assert reached.wait(240)
        with client_of(server) as client:
            assert left(client) == (1, 0)
        server.kill()
        building.join()
        go_on.set()
        server.start()
        with client_of(server) as client:
            client.environments.check("held", agent="pi", model="any")  # waits until the server has cleaned up
            assert left(client) == (0, 0)
            assert client.environments.build("held").built
            assert left(client) == (0, 1)
        server.kill()
        server.start()
        with client_of(server) as client:
            assert not client.environments.build("held").built


def serving_with(home: Path, port: int) -> AbstractContextManager[ServerProcess]:
    names_beside(home).write_text(json.dumps({"registry.test": {"80": port}}))
    return serving(home, outside=outside)


# --- every step ---


@pytest.mark.sampled(share=0.34)
@pytest.mark.parametrize("step", STEPS)
def test_a_server_killed_at_any_step_of_a_setup_leaves_nothing_half(tmp_path: Path, step: str) -> None:
    home = tmp_path / "home"
    fate(home).write_text(step)
    with serving(home, outside=outside_of_a_mortal) as server:
        with client_of(server) as client:
            client.environments.save("killed", 'setup = ["echo one > one", "echo two > two"]\n')
            with pytest.raises(HoldfastError):
                client.environments.build("killed")
        fate(home).unlink()
        with suppress(ServerFailed):  # it has killed itself
            server.kill()
        server.start()
        with client_of(server) as client:
            state = client.environments.check("killed", agent="pi", model="any").setup  # waits for the cleaning up
            assert state == ("built" if STEPS[step] else "missing")
            assert left(client) == (0, int(STEPS[step]))
            assert client.environments.build("killed").built is not STEPS[step]
            assert left(client) == (0, 1)
            until = time.monotonic() + 240
            while there := [each.name for each in (home / "local" / "boxes").iterdir()]:
                assert time.monotonic() < until, there
                time.sleep(0.05)
