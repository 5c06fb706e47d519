"""The REST surface does what its OpenAPI document says, whatever it is sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests.server.box_providers import dummies

from holdfast.server.routes.app import create_app
from holdfast.server.routes.services import Services
from holdfast.testing.server import ServerProcess

EXAMPLES = 200 if os.environ.get("HOLDFAST_TEST_ALL") else 25


# The document depends on the routes alone; the server that it is tried on comes with the test.
schema = schemathesis.openapi.from_dict(create_app(cast("Services", None)).openapi())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its boxes are dummies: hundreds are made here."""
    home = tmp_path_factory.mktemp("openapi") / "home"
    with ServerProcess(home, long_poll_timeout=0.5, providers=dummies) as server:
        yield server


class Key:
    """Gives every request the server's key, after it was generated."""

    value: str | None = None

    def get(self, case: schemathesis.Case[Any], context: schemathesis.AuthContext) -> str:
        return f"Bearer {Key.value}"

    def set(self, case: schemathesis.Case[Any], data: str, context: schemathesis.AuthContext) -> None:
        case.headers["Authorization"] = data


@schema.auth(Key)
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_keeps_its_word(case: schemathesis.Case[Any], server: ServerProcess) -> None:
    Key.value = server.api_key
    # Offsets and cursors are opaque: the schema cannot say which of them were given out.
    excluded: list[Any] = [positive_data_acceptance]
    query: dict[str, Any] = case.query or {}
    if any(isinstance(value, list | bool | None) for value in query.values()):
        # Meant as a wrong type, but all of a query is text: true, or a list of one true, is the word "true".
        excluded.append(negative_data_rejection)
    case.call_and_validate(base_url=server.url, excluded_checks=excluded, timeout=60)


def test_every_route_is_documented_with_its_errors(server: ServerProcess) -> None:
    document = httpx.get(f"{server.url}/v1/openapi.json").json()
    assert len(document["paths"]) >= 9
    for path, operations in document["paths"].items():
        if path.startswith("/v1/"):
            for operation in operations.values():
                assert operation["description"] or operation["summary"]
                assert {"401", "403", "404"} <= operation["responses"].keys()
