"""The limits of CONTRIBUTING.md for the code: sizes, docstrings, exports, and who reads the environment."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

CHECKOUT = Path(__file__).parents[2]
LARGEST: Final = 35 * 1024
MOST_MODULES: Final = 22
"""Beside `__init__`."""
GENERATED: Final = "\n\nWritten by `bin/generate`"
"""In the docstring of a file that nobody edits."""

ENVIRONMENT: Final = {
    "cli/": "the command line reads the configuration",
    "server/compose.py": "a server passes the environment to what needs its settings",
    "server/tenant/": "the same",
    "guest/": "in a box, the environment is how a program is told anything",
    "compat/daytona/in_box/": "the same",
    "harnesses/opencode/driver.py": "the same",
    "harnesses/opencode/server.py": "the same",
    "harnesses/opencode/supervision.py": "the same",
    "client/default_server.py": "a client without arguments is set up as the command line is",
    "interpreter/client_host.py": "the same",
    "interpreter/workspace/repositories.py": "git of this machine runs with the settings of its user",
    "images/debian/apt.py": "apt of this machine runs with the settings of its user",
    "harnesses/installation.py": "npm of this machine runs with the settings of its user",
    "providers/daytona/checks.py": "doctor, which the command line runs",
    "providers/sprites/checks.py": "the same",
    "providers/modal/guest_setup.py": "runs in a box",
    "testing/": "tests",
}
"""Who may read the environment, and why. All else is handed what it needs."""


@cache
def sources() -> tuple[Path, ...]:
    found = tuple(sorted((CHECKOUT / "src").rglob("*.py")))
    assert len(found) > 500
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(CHECKOUT)) for path in paths]


def test_no_file_is_too_large_to_be_about_one_noun() -> None:
    large = [path for path in sources() if path.stat().st_size > LARGEST]
    assert names([path for path in large if GENERATED not in (ast.get_docstring(tree(path)) or "")]) == []


def test_no_package_has_too_many_modules() -> None:
    modules = Counter(path.parent for path in sources() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in modules.items() if count > MOST_MODULES} == {}


def test_every_module_says_what_it_is_for() -> None:
    assert names([path for path in sources() if not ast.get_docstring(tree(path))]) == []


def defined(module: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                found |= {alias.asname or alias.name for alias in aliases}
    return found


def exported(module: ast.Module) -> list[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and "__all__" in [ast.unparse(each) for each in node.targets]:
            return [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]  # type: ignore[misc]
    return []


def test_what_a_module_exports_is_there_and_named_once() -> None:
    lists = {path: exported(tree(path)) for path in sources()}
    assert sum(map(bool, lists.values())) > 20
    for path, listed in lists.items():
        assert len(set(listed)) == len(listed), path
        submodules = {each.stem for each in path.parent.glob("*.py")} | {each.name for each in path.parent.iterdir()}
        missing = set(listed) - defined(tree(path)) - (submodules if path.name == "__init__.py" else set())
        assert not missing, f"{path}: {sorted(missing)}"


def reads_environment(module: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "environb", "getenv")
        and isinstance(node.value, ast.Name)
        and node.value.id in ("os", "_os")
        for node in ast.walk(module)
    )


def test_only_the_command_line_the_server_and_programs_in_boxes_read_the_environment() -> None:
    root = CHECKOUT / "src" / "holdfast"
    readers = [PurePosixPath(path.relative_to(root)) for path in sources() if reads_environment(tree(path))]
    others = [str(each) for each in readers if not any(str(each).startswith(known) for known in ENVIRONMENT)]
    assert others == [], "library code is handed what it needs"
    unused = [known for known in ENVIRONMENT if not any(str(each).startswith(known) for each in readers)]
    assert unused == [], "this no longer reads the environment: take it off the list"
