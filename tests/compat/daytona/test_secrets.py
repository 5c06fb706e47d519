"""Secrets of the Daytona SDK: a sandbox sees placeholders, and its egress knows the values."""

from __future__ import annotations

import uuid

import httpx
import pytest
from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaBadRequestError, DaytonaNotFoundError, Sandbox
from daytona.common.secret import CreateSecretParams, Secret, UpdateSecretParams
from daytona_api_client.exceptions import BadRequestException, ConflictException, NotFoundException
from tests.compat.daytona.conftest import client_of

from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.box, pytest.mark.slow]
VALUE = "value-of-a-secret-0123456789"


def made(daytona: Daytona, value: str = VALUE, hosts: list[str] | None = None) -> Secret:
    name = f"secret-{uuid.uuid4().hex}"
    return daytona.secret.create(CreateSecretParams(name=name, value=value, hosts=hosts or ["api.example.com"]))


def in_vault(server: ServerProcess, api: httpx.Client, secret: Secret) -> dict[str, object] | None:
    answer = api.get(f"{server.url}/v1/secrets/daytona_{secret.id.replace('-', '')}")
    return answer.json() if answer.status_code == 200 else None


def test_a_sandbox_sees_a_placeholder_and_its_egress_knows_the_hosts(
    daytona: Daytona, daytona_server: ServerProcess, api: httpx.Client
) -> None:
    secret = made(daytona)
    assert in_vault(daytona_server, api, secret) is None  # until it is mounted
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(secrets={"TOKEN": secret.name}, env_vars={"A": "1"}))
    assert sandbox.process.exec("echo $TOKEN $A").result == f"{secret.placeholder} 1\n"
    assert sandbox.process.exec("test -s $SSL_CERT_FILE").exit_code == 0
    assert VALUE not in sandbox.process.exec("env; cat /proc/*/environ 2>/dev/null").result
    assert "TOKEN" not in (sandbox.env or {})
    known = in_vault(daytona_server, api, secret)
    assert known is not None
    assert known["bindings"] == [
        {
            "host": "api.example.com",
            "placement": "placeholder",
            "name": secret.placeholder,
            "format": "{}",
            "repositories": [],
        }
    ]
    daytona.secret.update(secret.id, UpdateSecretParams(hosts=["other.example.com"]))
    known = in_vault(daytona_server, api, secret)
    assert known is not None
    assert "other.example.com" in str(known["bindings"])
    box = api.get(f"{daytona_server.url}/v1/boxes/{sandbox.id}").json()
    assert [known["name"]] == box["spec"]["network"]["secrets"]
    sandbox.update_network_settings(domain_allow_list="example.com")
    box = api.get(f"{daytona_server.url}/v1/boxes/{sandbox.id}").json()
    assert [known["name"]] == box["spec"]["network"]["secrets"]
    forked = sandbox.fork(name=f"fork-{uuid.uuid4().hex}")
    assert forked.process.exec("echo $TOKEN").result == f"{secret.placeholder}\n"
    daytona.secret.delete(secret.id)
    assert in_vault(daytona_server, api, secret) is None
    for each in (forked, sandbox):
        each.delete()


def test_secrets_are_attached_and_detached(daytona: Daytona, shared: Sandbox) -> None:
    first, second = made(daytona), made(daytona)
    shared.update_secrets({"ONE": first.name, "TWO": second.name})
    assert shared.process.exec("echo $ONE $TWO").result == f"{first.placeholder} {second.placeholder}\n"
    shared.update_secrets({"TWO": second.name})
    assert shared.process.exec("echo $ONE $TWO").result == f"{second.placeholder}\n"
    shared.update_secrets({})
    assert shared.process.exec("echo $ONE $TWO").result == "\n"
    with pytest.raises(DaytonaNotFoundError, match="no-such"):
        shared.update_secrets({"ONE": "no-such"})


def test_a_sandbox_without_a_network_has_placeholders_too(daytona: Daytona) -> None:
    secret = made(daytona)
    params = CreateSandboxFromSnapshotParams(secrets={"TOKEN": secret.name}, network_block_all=True)
    sandbox = daytona.create(params)
    assert sandbox.process.exec("echo $TOKEN").result == f"{secret.placeholder}\n"
    sandbox.delete()


@pytest.mark.parametrize(
    ("value", "hosts", "why"),
    [
        (VALUE, ["*.example.com"], "named one by one"),
        ("short", ["api.example.com"], "16 to 8192"),
        ("with blanks in it, and long", ["api.example.com"], "cannot have"),
    ],
)
def test_a_secret_that_could_not_be_sent_is_refused_when_it_is_mounted(
    daytona: Daytona, value: str, hosts: list[str], why: str
) -> None:
    secret = made(daytona, value, hosts)
    with pytest.raises(DaytonaBadRequestError, match=why) as caught:
        daytona.create(CreateSandboxFromSnapshotParams(secrets={"TOKEN": secret.name}))
    assert value not in str(caught.value)
    daytona.secret.update(secret.id, UpdateSecretParams(value=VALUE, hosts=["api.example.com"]))
    daytona.create(CreateSandboxFromSnapshotParams(secrets={"TOKEN": secret.name})).delete()


def test_what_is_wrong_with_a_secret_is_said(daytona: Daytona) -> None:
    secret = made(daytona)
    with pytest.raises(ConflictException):
        daytona.secret.create(CreateSecretParams(name=secret.name, value=VALUE))
    for name, hosts in (("1st", ["a.example.com"]), ("fine", ["https://a.example.com"]), ("fine", ["a.example.com:1"])):
        with pytest.raises(BadRequestException):
            daytona.secret.create(CreateSecretParams(name=name, value=VALUE, hosts=hosts))
    daytona.secret.delete(secret.id)
    for call in (daytona.secret.get, daytona.secret.delete):
        with pytest.raises(NotFoundException):
            call(secret.id)


def test_no_answer_and_no_database_has_a_value(
    daytona: Daytona, daytona_server: ServerProcess, api: httpx.Client
) -> None:
    secret = made(daytona, f"{VALUE}-{uuid.uuid4().hex}")
    for path in ("/secret", "/secret/paginated", f"/secret/{secret.id}"):
        text = api.get(path).text
        assert secret.placeholder in text
        assert VALUE not in text
    assert api.get("/sandbox/any/secrets").status_code == 501
    databases = list(daytona_server.home.rglob("*.db*"))
    assert databases
    for each in databases:
        assert VALUE.encode() not in each.read_bytes(), each


def test_only_an_owner_changes_secrets(daytona: Daytona, daytona_server: ServerProcess, api: httpx.Client) -> None:
    answer = api.post(f"{daytona_server.url}/v1/keys", json={"name": uuid.uuid4().hex, "role": "member"})
    assert answer.status_code == 201, answer.text
    secret = made(daytona)
    with client_of(daytona_server, answer.json()["key"]) as member:
        assert member.secret.get(secret.id).name == secret.name
        for call in (
            lambda: member.secret.create(CreateSecretParams(name="of-a-member", value=VALUE)),
            lambda: member.secret.update(secret.id, UpdateSecretParams(hosts=["evil.example.com"])),
            lambda: member.secret.delete(secret.id),
        ):
            with pytest.raises(Exception, match="403"):
                call()
