"""The models of a server: what is built in, what was added, which one is meant, and keys that nobody reads at rest."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.egress.model_world import KEY, SECRET
from tests.stores import open_models

from holdfast.api.model.models import Api
from holdfast.egress.models import PROVIDERS, InvalidModel, ModelKeyMissing, ModelNotFound, Models
from holdfast.egress.models.catalog import SIZES
from holdfast.egress.models.upstream import proxy_for
from holdfast.encryption import CannotDecrypt, Cipher

pytestmark = pytest.mark.anyio

URL = "https://models.example.com/v1"


@pytest.fixture
async def models(tmp_path: Path) -> AsyncIterator[Models]:
    async with open_models(tmp_path / "data.db", SECRET) as models:
        yield models


async def test_a_provider_that_is_built_in_only_wants_a_key(models: Models) -> None:
    with pytest.raises(ModelKeyMissing, match="openai needs a key"):
        models.resolve("openai")
    made = await models.put("openai", key=KEY)
    assert made.has_key
    assert made.is_ready
    choice = models.resolve("openai")
    assert str(choice) == f"openai/{PROVIDERS['openai'].model}"
    assert choice.apis == (Api.OPENAI_RESPONSES, Api.OPENAI_CHAT)
    endpoint = models.endpoint("openai", Api.OPENAI_CHAT)
    assert endpoint is not None
    assert (endpoint.url, endpoint.key) == ("https://api.openai.com/v1", KEY)
    assert models.endpoint("openai", Api.ANTHROPIC) is None


async def test_a_server_of_ones_own_needs_no_key(models: Models) -> None:
    await models.put("mine", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:8000/v1/", model="qwen")
    endpoint = models.endpoint("mine", Api.OPENAI_CHAT)
    assert endpoint is not None
    assert (endpoint.url, endpoint.key) == ("http://127.0.0.1:8000/v1", None)
    assert str(models.resolve()) == "mine/qwen"


async def test_a_model_is_chosen_by_name_and_by_name_and_id(models: Models) -> None:
    await models.put("openrouter", key=KEY)
    await models.put("mine", apis=list(Api), base_url=URL, model="big", context_window=50_000, max_tokens=999)
    assert str(models.resolve("openrouter/openai/gpt-5.5")) == "openrouter/openai/gpt-5.5"
    assert models.resolve("openrouter/openai/gpt-5.5").context_window == SIZES["openai/gpt-5.5"].context_window
    assert models.resolve("openrouter/never/heard").context_window == 128_000
    assert models.resolve("mine").context_window == 50_000
    assert models.resolve("mine/other").max_tokens == 999
    choice = models.resolve("mine")
    assert choice.spoken_by((Api.ANTHROPIC, Api.OPENAI_CHAT)) is Api.ANTHROPIC
    assert models.resolve("openrouter").spoken_by(()) is None


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ("nothing", ModelNotFound, "no model 'nothing'"),
        ("", ModelNotFound, "no model ''"),
        ("bare", InvalidModel, "has no default model"),
        ("bare/with space", InvalidModel, "not a valid id of a model"),
        ("bare/line\nend", InvalidModel, "not a valid id of a model"),
        ("google", ModelKeyMissing, "google needs a key"),
        (None, InvalidModel, "there are 2 models"),
    ],
)
async def test_what_cannot_be_chosen_is_explained(
    models: Models, wanted: str | None, error: type[Exception], words: str
) -> None:
    await models.put("bare", apis=[Api.OPENAI_CHAT], base_url=URL)
    await models.put("other", apis=[Api.OPENAI_CHAT], base_url=URL)
    with pytest.raises(error, match=words):
        models.resolve(wanted)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "Upper"},
        {"name": "a/b"},
        {"name": "-a"},
        {"name": ""},
        {"base_url": "ftp://models.example.com"},
        {"base_url": "https://"},
        {"base_url": "https://user:secret@models.example.com"},
        {"base_url": "https://models.example.com/v1?key=x"},
        {"base_url": "https://models.example.com/v1#x"},
        {"base_url": "https://models.example.com/../v1"},
        {"base_url": "https://models.example.com/%2e%2e"},
        {"base_url": "https://models.example.com:99999"},
        {"base_url": "https://models example.com"},
        {"base_url": "https://models.example.com\r\nhost: evil"},
        {"base_url": "//models.example.com"},
        {"base_url": "https://" + "a" * 3000},
        {"key": ""},
        {"key": "two words"},
        {"key": "line\r\nx-evil: 1"},
        {"key": "umläut"},
        {"key": "x" * 5000},
        {"base_url": "http://models.example.com"},
        {"model": "with space"},
        {"context_window": 0},
        {"max_tokens": -1},
        {"apis": []},
        {"base_url": None},
    ],
)
async def test_a_model_that_makes_no_sense_is_refused(models: Models, given: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"name": "mine", "apis": [Api.OPENAI_CHAT], "base_url": URL, "key": KEY, **given}
    with pytest.raises(InvalidModel) as caught:
        await models.put(fields.pop("name"), **fields)
    assert given.get("key") in (None, "") or given["key"] not in f"{caught.value} {caught.value.hint}"
    assert not any(model.is_ready for model in models.all())


async def test_an_anthropic_url_is_the_same_with_and_without_its_version(models: Models) -> None:
    await models.put("mine", apis=list(Api), base_url=URL)
    assert models.get("mine").endpoints[Api.ANTHROPIC] == "https://models.example.com"
    assert models.get("mine").endpoints[Api.OPENAI_CHAT] == "https://models.example.com/v1"


async def test_models_outlive_a_restart(tmp_path: Path) -> None:
    async with open_models(tmp_path / "data.db", SECRET) as models:
        await models.put("mine", apis=[Api.ANTHROPIC], base_url=URL, key=KEY, model="m", context_window=1000)
        await models.put("groq", key=KEY)
        before = models.all()
    async with open_models(tmp_path / "data.db", SECRET) as models:
        assert models.all() == before
        endpoint = models.endpoint("mine", Api.ANTHROPIC)
        assert endpoint is not None
        assert endpoint.key == KEY
        await models.remove("mine")
        await models.remove("groq")
    async with open_models(tmp_path / "data.db", SECRET) as models:
        assert not models.get("groq").has_key
        with pytest.raises(ModelNotFound):
            models.get("mine")
        with pytest.raises(ModelNotFound, match="nothing to remove"):
            await models.remove("groq")


async def test_a_change_keeps_what_it_does_not_name(models: Models) -> None:
    await models.put("mine", apis=[Api.ANTHROPIC], base_url=URL, key=KEY, model="one")
    changed = await models.put("mine", model="two")
    assert (changed.model, changed.has_key, changed.apis) == ("two", True, (Api.ANTHROPIC,))
    assert (await models.put("mine", base_url=URL)).has_key


async def test_a_key_does_not_move_to_another_server(models: Models) -> None:
    await models.put("mine", apis=[Api.ANTHROPIC], base_url=URL, key=KEY)
    moved = await models.put("mine", base_url="https://other.example.com")
    assert not moved.has_key


# --- keys at rest ---------------------------------------------------------------------------------------------------


async def test_no_file_and_no_text_shows_a_key(tmp_path: Path) -> None:
    async with open_models(tmp_path / "data.db", SECRET) as models:
        await models.put("mine", apis=[Api.ANTHROPIC], base_url=URL, key=KEY)
        files = [path for path in tmp_path.iterdir() if path.is_file()]
        assert any(b"models.example.com" in path.read_bytes() for path in files)
        for path in files:
            assert KEY.encode() not in path.read_bytes()
            assert KEY[-8:].encode() not in path.read_bytes()
        shown = f"{models.all()} {models.endpoint('mine', Api.ANTHROPIC)!r} {vars(models)}"
        assert KEY not in shown
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


async def test_a_key_that_was_sealed_with_another_secret_has_to_be_given_again(tmp_path: Path) -> None:
    async with open_models(tmp_path / "data.db", SECRET) as models:
        await models.put("openai", key=KEY)
    async with open_models(tmp_path / "data.db", b"o" * 32) as models:
        with pytest.raises(ModelKeyMissing, match="cannot be read"):
            models.endpoint("openai", Api.OPENAI_CHAT)
        await models.put("openai", key=KEY)
        assert models.endpoint("openai", Api.OPENAI_CHAT) is not None


@pytest.mark.parametrize(
    "tamper",
    [
        "UPDATE models SET endpoints = '{\"anthropic\": \"https://evil.example.com\"}' WHERE name = 'mine'",
        "UPDATE models SET key = (SELECT key FROM models WHERE name = 'other') WHERE name = 'mine'",
        "UPDATE models SET key = x'0102' WHERE name = 'mine'",
    ],
)
async def test_a_key_does_not_open_for_another_place(tmp_path: Path, tamper: str) -> None:
    async with open_models(tmp_path / "data.db", SECRET) as models:
        await models.put("mine", apis=[Api.ANTHROPIC], base_url=URL, key=KEY)
        await models.put("other", apis=[Api.ANTHROPIC], base_url=URL, key=KEY[::-1])
    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute(tamper)
    connection.close()
    async with open_models(tmp_path / "data.db", SECRET) as models:
        with pytest.raises(ModelKeyMissing, match="cannot be read"):
            models.endpoint("mine", Api.ANTHROPIC)


def test_what_is_encrypted_is_never_the_same_twice_and_is_bound_to_its_purpose() -> None:
    cipher = Cipher(SECRET)
    one, two = cipher.encrypt(KEY, "a"), cipher.encrypt(KEY, "a")
    assert one != two
    assert cipher.decrypt(one, "a") == cipher.decrypt(two, "a") == KEY
    for broken, purpose in ((one, "b"), (one[:-1], "a"), (b"", "a"), (b"\x02" + one[1:], "a")):
        with pytest.raises(CannotDecrypt):
            cipher.decrypt(broken, purpose)


# --- the catalog, and the way there ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PROVIDERS))
def test_a_provider_that_is_built_in_makes_sense(name: str) -> None:
    provider = PROVIDERS[name]
    assert provider.model in SIZES
    assert provider.endpoints
    for api, url in provider.endpoints.items():
        assert url.startswith("https://")
        assert not url.endswith("/")
        assert api is not Api.ANTHROPIC or not url.endswith("/v1")


@pytest.mark.parametrize(
    ("scheme", "host", "environment", "proxy"),
    [
        ("https", "a.com", {}, None),
        ("https", "a.com", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https", "a.com", {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("http", "a.com", {"HTTPS_PROXY": "http://p:1"}, None),
        ("http", "a.com", {"HTTP_PROXY": "http://visitor:1"}, None),
        ("http", "a.com", {"http_proxy": "http://p:1"}, "http://p:1"),
        ("https", "a.com", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "b.com, .a.com"}, None),
        ("https", "x.a.com", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.com"}, None),
        ("https", "ba.com", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.com"}, "http://p:1"),
        ("https", "a.com", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
        ("https", "127.0.0.1", {"HTTPS_PROXY": "http://p:1"}, None),
        ("http", "localhost", {"http_proxy": "http://p:1"}, None),
    ],
)
def test_the_proxy_of_the_machine_is_used_where_it_is_meant(
    scheme: str, host: str, environment: dict[str, str], proxy: str | None
) -> None:
    assert proxy_for(scheme, host, environment) == proxy
