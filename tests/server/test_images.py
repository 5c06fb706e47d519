"""Images over REST, on a real server over a socket, with real local boxes."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator

import httpx
import pytest
from tests.providers.local.rootfs import Tar, busybox
from tests.server.conftest import api_of

from holdfast.testing.server import ServerProcess


@pytest.fixture
def local_api(local_server: ServerProcess) -> Iterator[httpx.Client]:
    with api_of(local_server) as api:
        yield api
        for image in api.get("/v1/images").json()["images"]:
            api.delete(f"/v1/images/{image['name']}")


def take(api: httpx.Client, name: str, archive: bytes) -> httpx.Response:
    return api.post("/v1/images/import", params={"name": name}, content=archive)


def test_an_image_from_an_archive_to_a_box_and_a_new_image(local_api: httpx.Client) -> None:
    made = take(local_api, "team/tools:1", gzip.compress(busybox().done()))
    assert made.status_code == 201, made.text
    image = made.json()
    assert (image["name"], len(image["layers"]), image["config"]["env"]) == ("team/tools:1", 1, {})
    assert local_api.get("/v1/images").json() == {"images": [image]}
    assert local_api.get("/v1/images/team/tools:1").json() == image
    assert local_api.get(f"/v1/images/{image['digest']}").json() == image
    box = local_api.post("/v1/boxes", json={"spec": {"image": "team/tools:1"}}).json()["box"]["id"]
    ran = local_api.post(f"/v1/boxes/{box}/exec", json={"argv": ["sh", "-c", "echo made > /made; id -u"]})
    assert base64.b64decode(ran.json()["stdout"]) == b"0\n"
    snapshot = local_api.post(f"/v1/boxes/{box}/snapshots").json()["id"]
    new = {"snapshot": snapshot, "name": "team/made", "config": {"env": {"A": "1"}}, "labels": {"step": "x"}}
    named = local_api.post("/v1/images", json=new)
    assert named.status_code == 201, named.text
    assert (named.json()["config"]["env"], named.json()["labels"]) == ({"A": "1"}, {"step": "x"})
    again = local_api.post("/v1/boxes", json={"spec": {"image": "team/made"}}).json()["box"]["id"]
    ran = local_api.post(f"/v1/boxes/{again}/exec", json={"argv": ["sh", "-c", "cat /made; echo $A"]})
    assert base64.b64decode(ran.json()["stdout"]) == b"made\n1\n"
    assert local_api.delete("/v1/images/team/tools:1").status_code == 200
    assert local_api.get("/v1/images/team/tools:1").status_code == 404
    for id in (box, again):
        assert local_api.delete(f"/v1/boxes/{id}").status_code == 200
    local_api.delete(f"/v1/snapshots/{snapshot}")
    assert local_api.delete("/v1/images/team/made").json()["freed"] > 0


def test_refusals_say_what_and_what_to_do(local_api: httpx.Client) -> None:
    def refused(answer: httpx.Response) -> tuple[int, str]:
        return answer.status_code, answer.json()["error"]["code"]

    assert refused(take(local_api, "evil", Tar().file("../evil").done())) == (422, "hostile_archive")
    assert refused(take(local_api, "evil", b"no archive")) == (422, "bad_archive")
    assert refused(take(local_api, "NO", Tar().file("x").done())) == (422, "invalid_spec")
    assert refused(local_api.get("/v1/images/nothing")) == (404, "image_not_found")
    assert refused(local_api.delete("/v1/images/nothing")) == (404, "image_not_found")
    assert refused(local_api.get("/v1/images/..%2F..%2Fetc")) == (404, "image_not_found")
    assert refused(local_api.get("/v1/images", params={"provider": "nobody"})) == (422, "unsupported")
    assert refused(local_api.get("/v1/images", params={"provider": "process"})) == (422, "unsupported")
    unknown = local_api.post("/v1/boxes", json={"spec": {"image": "nothing"}})
    assert refused(unknown) == (404, "image_not_found")
    assert "holdfast image" in unknown.json()["error"]["hint"]
    assert refused(local_api.post("/v1/images", json={"snapshot": "s-none", "name": "x"})) == (
        404,
        "snapshot_not_found",
    )
    assert refused(local_api.post("/v1/images/pull", json={"name": "../../etc"})) == (422, "invalid_spec")
    assert refused(local_api.post("/v1/images/pull", json={"name": "a", "provider": "process"})) == (422, "unsupported")
    assert refused(local_api.post("/v1/images/pull", json={"name": "127.0.0.1:1/a"})) == (502, "registry_failed")
    assert refused(local_api.post("/v1/images/pull", json={"name": "registry.example/a"})) == (502, "registry_failed")
    named = {"name": "127.0.0.1:1/a", "credentials": {"username": "a:b", "password": "s3cret"}}
    wrong = local_api.post("/v1/images/pull", json=named)
    assert wrong.status_code == 422
    assert "s3cret" not in wrong.text
    assert local_api.get("/v1/images").json() == {"images": []}
