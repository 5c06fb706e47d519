"""Real boxes use secrets that they do not see: curl, Python and git in them, against real servers at HTTPS."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator

import pytest
from tests.server.egress_world import authority_beside, names_beside, outside
from tests.server.private_forge import AUTHORITY, GIT, HOST, VALUE, serve_forge

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.secrets import SecretMissing
from holdfast.api.secrets import Binding, Exposure, Placement, SecretAction
from holdfast.client import SyncClient
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.box

Seen = list[tuple[str, str, str | None]]
Sh = Callable[..., tuple[int, str]]
World = tuple[ServerProcess, Seen, str | None]

PYTHON = f"import urllib.request; print(urllib.request.urlopen('https://{HOST}/python').read().decode())"
NODE = """
const headers = {host: "api.test:443"}
const proxy = require("http").request({host: "127.0.0.1", port: 3128, method: "CONNECT", path: "api.test:443", headers})
proxy.on("connect", (answer, socket) => {
  const createConnection = () => require("tls").connect({socket, servername: "api.test"})
  require("https").get({host: "api.test", port: 443, path: "/node", createConnection}, got => got.pipe(process.stdout))
})
proxy.end()
"""
HIDDEN = f"you sent Bearer {'*' * len(VALUE)}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("secrets")
    home = folder / "home"
    with serve_forge(folder / "repositories") as (names, seen):
        names_beside(home).write_text(json.dumps(names))
        authority_beside(home).write_bytes(AUTHORITY.certificate())
        with ServerProcess(home, outside=outside) as server:
            with SyncClient(server.url, api_key=server.api_key) as client:
                client.secrets.set("TOKEN", VALUE, [Binding(host=HOST, format="Bearer {}")])
                repository = Binding(host=GIT, placement=Placement.GIT, repositories=("acme/app",))
                client.secrets.set("REPOSITORY", VALUE, [repository])
                key = client.keys.create("for a server that restarts").secret
            yield server, seen, key


@pytest.fixture
def seen(world: World) -> Seen:
    world[1].clear()
    return world[1]


@pytest.fixture
def client(world: World) -> Iterator[SyncClient]:
    with SyncClient(world[0].url, api_key=world[2]) as client:
        yield client


@pytest.fixture
def make(client: SyncClient) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def make(*secrets: str, allow: tuple[str, ...] = ("other.test",), mode: Network = Network.ALLOW) -> str:
        rules = allow if mode is Network.ALLOW else ()
        box = client.boxes.create(BoxSpec(network=NetworkPolicy(mode, rules, secrets=secrets)))
        made.append(box.box.id)
        return box.box.id

    yield make
    for each in made:
        client.boxes.delete(each)


@pytest.fixture
def sh(client: SyncClient) -> Sh:
    def sh(box: str, script: str) -> tuple[int, str]:
        with client.boxes.open(box) as opened:
            done = opened.exec(["bash", "-c", f"exec 2>&1; {script}"], timeout=60)
        return done.exit_code, done.stdout.decode()

    return sh


def test_programs_in_a_box_use_a_secret_that_they_do_not_see(
    make: Callable[..., str], sh: Sh, seen: Seen, client: SyncClient
) -> None:
    box = make("TOKEN")
    code, said = sh(box, f'curl -sS -H "Authorization: Bearer $TOKEN" https://{HOST}/curl && python3 -c "{PYTHON}"')
    assert code == 0, said
    assert said.count(HIDDEN) == 2
    assert seen == [("GET", "/curl", f"Bearer {VALUE}"), ("GET", "/python", f"Bearer {VALUE}")]
    everywhere = "grep -rs sk-live /dev/shm /etc /home/box /run /tmp /var /workspace"
    said = sh(box, f"env; cat /proc/*/environ | tr '\\0' '\\n'; {everywhere}; true")[1].replace(everywhere, "")
    assert "TOKEN=holdfast-placeholder-TOKEN" in said
    assert "sk-live" not in said
    event = client.secrets.events("TOKEN")[0]
    assert (event.action, event.box, event.host) == (SecretAction.USED, box, HOST)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_trusts_the_authority_of_its_box(make: Callable[..., str], sh: Sh, seen: Seen) -> None:
    code, said = sh(make("TOKEN"), f"node -e {shlex.quote(NODE)}")
    assert code == 0, said
    assert said.strip() == HIDDEN
    assert seen == [("GET", "/node", f"Bearer {VALUE}")]


def test_other_hosts_are_verified_end_to_end_by_the_box(make: Callable[..., str], sh: Sh, seen: Seen) -> None:
    box = make("TOKEN")
    code, said = sh(box, "curl -sS https://other.test/")
    assert code == 60, said  # its certificate is not one that the box trusts: the proxy does not stand between
    assert sh(box, "curl -sSk https://other.test/")[1].strip() == "you sent None"
    assert [credential for _, _, credential in seen] == [None]


def test_git_reads_one_repository_and_no_token_is_in_the_box(make: Callable[..., str], sh: Sh, seen: Seen) -> None:
    box = make("REPOSITORY")
    code, said = sh(box, f"git clone -q https://{GIT}/acme/app.git && cat app/README && cat app/.git/config")
    assert code == 0, said
    assert said.startswith("hello\n")
    assert sh(box, "grep -rs -e sk-live -e x-access-token /workspace /home /tmp /etc; true")[1] == ""
    code, said = sh(box, f"GIT_TERMINAL_PROMPT=0 git clone -q https://{GIT}/acme/other.git")
    assert code != 0
    assert {path.partition("/info")[0] for _, path, credential in seen if credential} <= {
        "/acme/app.git", "/acme/app.git/git-upload-pack",
    }  # fmt: skip


PUSH = (
    f"git clone -q https://{GIT}/acme/app.git app && cd app && git config user.name a && git config user.email a@b.c"
    " && date +%N > new && git add new && git commit -qm new && git push -q origin HEAD:refs/heads/from-box"
)


def test_git_pushes_only_from_a_box_that_may(make: Callable[..., str], sh: Sh, seen: Seen, client: SyncClient) -> None:
    code, said = sh(make("REPOSITORY"), PUSH)
    assert code != 0
    assert "403" in said
    assert not any("receive-pack" in path for _, path, _ in seen)
    event = client.secrets.events("REPOSITORY")[0]
    assert event.action is SecretAction.REFUSED
    code, said = sh(make("REPOSITORY:push"), PUSH)
    assert code == 0, said
    assert sh(make("REPOSITORY"), f"git ls-remote https://{GIT}/acme/app.git from-box")[1].strip()


def test_a_box_without_the_secret_does_not_get_it(make: Callable[..., str], sh: Sh, seen: Seen) -> None:
    box = make(allow=(HOST,))
    assert sh(box, f"curl -sSk https://{HOST}/")[1].strip() == "you sent None"
    assert "TOKEN" not in sh(box, "env")[1]


def test_a_secret_is_given_to_and_taken_from_a_running_box(
    make: Callable[..., str], sh: Sh, seen: Seen, client: SyncClient
) -> None:
    box = make()
    client.boxes.set_network(box, NetworkPolicy(Network.ALLOW, ("other.test",), secrets=("TOKEN",)))
    assert HIDDEN in sh(box, f"curl -sS https://{HOST}/")[1]
    client.boxes.set_network(box, NetworkPolicy(Network.ALLOW, ("other.test",)))
    assert "403" in sh(box, f"curl -sS https://{HOST}/")[1]


def test_a_fork_has_an_authority_of_its_own(make: Callable[..., str], sh: Sh, seen: Seen, client: SyncClient) -> None:
    box = make("TOKEN")
    certificates = "tail -n 12 /tmp/.holdfast/certificates.pem"
    before = sh(box, certificates)[1]
    fork = client.boxes.fork(box).id
    try:
        assert HIDDEN in sh(fork, f"curl -sS https://{HOST}/")[1]
        assert sh(fork, certificates)[1] != before
    finally:
        client.boxes.delete(fork)


def test_an_exposed_secret_is_in_the_box_and_said_to_be(make: Callable[..., str], sh: Sh, client: SyncClient) -> None:
    client.secrets.set("PLAIN", "a plain value", expose=Exposure.ENV)
    client.secrets.set("PEM", "two\nlines\n", expose=Exposure.FILE)
    box = make("PLAIN", "PEM", mode=Network.NONE)
    assert sh(box, 'echo "$PLAIN"; cat "$PEM_FILE"; stat -c %a "$PEM_FILE"')[1] == "a plain value\ntwo\nlines\n600\n"
    event = client.secrets.events("PEM")[0]
    assert (event.action, event.box, event.detail) == (SecretAction.EXPOSED, box, "as a file")


def test_a_missing_secret_stops_a_box_before_it_is_created(make: Callable[..., str], client: SyncClient) -> None:
    before = len(client.boxes.page(limit=200).boxes)
    with pytest.raises(SecretMissing, match="there is no secret NOT_THERE"):
        make("TOKEN", "NOT_THERE")
    assert len(client.boxes.page(limit=200).boxes) == before


def test_a_box_keeps_its_secrets_when_the_server_restarts(
    world: World, make: Callable[..., str], sh: Sh, seen: Seen
) -> None:
    box = make("TOKEN")
    world[0].restart()
    assert HIDDEN in sh(box, f"curl -sS https://{HOST}/")[1]
