"""The generated references in docs/ are what the code says, and leave nothing out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from starlette.routing import WebSocketRoute

from holdfast.cli.commands import COMMANDS, Group
from holdfast.server.routes.app import create_app
from holdfast.server.routes.services import Services

LIB = Path(__file__).parents[2] / "bin" / "lib"
DOCS = Path(__file__).parents[2] / "docs"


def generator(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_reference", LIB / f"{name}_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["tool", "cli", "rest", "python"])
def test_a_reference_is_current(name: str) -> None:
    module = generator(name)
    assert module.PAGE.read_text() == module.page(), "run bin/generate"


def test_every_route_is_in_the_reference() -> None:
    page = (DOCS / "reference/rest.md").read_text()
    app = create_app(cast("Services", None))
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            assert f"### {method.upper()} {path}\n\n" in page
    sockets = [each.path for each in app.routes if isinstance(each, WebSocketRoute)]
    assert sockets
    assert all(f"### WEBSOCKET {path}\n\nRole: member." in page for path in sockets)


def test_every_command_is_in_the_reference() -> None:
    page = (DOCS / "reference/cli.md").read_text()

    def names(commands: object, before: str) -> list[str]:
        assert isinstance(commands, dict)
        return [
            found
            for word, each in commands.items()
            for found in (names(each.commands, f"{before} {word}") if isinstance(each, Group) else [f"{before} {word}"])
        ]

    found = names(COMMANDS, "holdfast")
    assert len(found) > 100
    assert [name for name in found if f"### {name}\n" not in page] == []


def test_options_with_choices_name_them() -> None:
    page = (DOCS / "reference/cli.md").read_text()
    assert "| `--network` `none\\|allow\\|open` |" in page
    assert "LITERAL" not in page
    assert "……" not in page
    assert "...…" not in page
