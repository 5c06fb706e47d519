"""Which tests a change can break: what `bin/test --changed` runs.

A test file is chosen if it changed, if it mirrors a changed file (`tests/boxes/test_pool.py` for `boxes/pool.py`), or
if it imports a changed module, directly or not. Imports are read from the sources, also those inside functions; the
name of a module in a string counts as an import, because that is how servers load their parts. Files that nobody
imports are assigned by folder. Changes to the ground that all tests stand on choose everything.
"""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

GROUND: Final = ("bin", ".ci", "pyproject.toml", "requirements", "tests/conftest.py", "tests/suite")
"""What every test depends on."""
FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    # Guests are carried into boxes as files.
    "src/holdfast/guest/kernel": ("tests/guest", "tests/interpreter"),
    "src/holdfast/guest/runner": ("tests/guest", "tests/harnesses", "tests/runs"),
    "src/holdfast/guest": ("tests/guest", "tests/providers", "tests/interpreter", "tests/runs"),
    "src/holdfast/web": ("tests/page", "tests/server"),
    "web": ("tests/page", "tests/server/test_page_files.py"),
    "docs": ("tests/docs", "tests/cli"),
    "README.md": ("tests/docs", "tests/cli"),
    "examples": ("tests/examples",),
    "benchmarks": (),
    ".github": (),
}
"""Files that no test imports, and the tests that use them. The first folder that fits counts."""


@dataclass(frozen=True)
class Choice:
    """Test files in the order that they should run in, and why."""

    files: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Module:
    imports: frozenset[str]
    fixtures: frozenset[str] = frozenset()
    """Fixtures that it defines."""
    arguments: frozenset[str] = frozenset()
    """Names of the arguments of its functions, among which are the fixtures that it uses."""


@dataclass(frozen=True)
class Sources:
    """The modules of a checkout, and the files that they are in."""

    modules: Mapping[str, Module]
    files: Mapping[str, str]
    """By module: its file, relative to the checkout."""
    tests: tuple[str, ...] = field(default=())
    """The modules of test files."""

    def used_by(self, module: str) -> set[str]:
        """Every module that importing this one loads, now or later, and itself."""
        seen = {module}
        waiting = [module]
        while waiting:
            for name in self._next(waiting.pop()):
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return seen

    def _next(self, name: str) -> Iterator[str]:
        module = self.modules[name]
        yield from module.imports
        # A conftest.py matters to those who use its fixtures. Every test would depend on all of a server otherwise.
        for folder in _parents(name):
            conftest = f"{folder}.conftest"
            if conftest != name and conftest in self.modules and module.arguments & self.modules[conftest].fixtures:
                yield conftest


def read_sources(checkout: Path) -> Sources:
    files = {}
    for root, folder in (("src", "src/holdfast"), ("", "tests")):
        for path in sorted(_python_files(checkout / folder)):
            parts = path.relative_to(checkout / root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            files[name] = path.relative_to(checkout).as_posix()
    modules = {name: read_module((checkout / file).read_text(), name, files) for name, file in files.items()}
    tests = tuple(name for name in files if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_"))
    return Sources(modules, files, tests)


def _python_files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("node_modules", "__pycache__")]
        yield from (Path(here, name) for name in names if name.endswith(".py"))


def read_module(source: str, name: str, known: Iterable[str]) -> Module:
    """What a module imports of the known ones, and its fixtures."""
    known = known if isinstance(known, Mapping) else set(known)
    imports: set[str] = set()
    fixtures: set[str] = set()
    arguments: set[str] = set()
    for node in _walk_at_runtime(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports.add(node.module)
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            imports.add(node.value)
        elif isinstance(node, ast.List | ast.Tuple):
            imports.update(_programs(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments.update(each.arg for each in (*node.args.args, *node.args.kwonlyargs))
            if any(_is_fixture(each) for each in node.decorator_list):
                fixtures.add(node.name)
    # The root package is loaded with everything, and itself loads what is asked of it: only who names it depends on it.
    packages = {parent for each in imports for parent in _parents(each) if parent not in ("holdfast", "tests")}
    return Module(
        frozenset(each for each in imports | packages if each in known and each != name),
        frozenset(fixtures),
        frozenset(arguments),
    )


def _walk_at_runtime(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    waiting = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                continue
            yield child
            waiting.append(child)


def _is_fixture(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "fixture"


def _programs(words: ast.List | ast.Tuple) -> Iterator[str]:
    """The module of `python -m module` in a command."""
    values = [each.value if isinstance(each, ast.Constant) else None for each in words.elts]
    for option, module in itertools.pairwise(values):
        if option == "-m" and isinstance(module, str):
            yield module
            yield f"{module}.__main__"


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def choose(changed: Iterable[str], sources: Sources) -> Choice:
    """Choose test files for the files that changed, given as paths relative to the checkout."""
    changed = sorted(set(changed))
    everything = tuple(sources.files[name] for name in sources.tests)
    for path in changed:
        if any(_is_below(path, each) for each in GROUND):
            return Choice(everything, f"all {len(everything)} test files, because {path} changed")
    by_file = {file: name for name, file in sources.files.items()}
    modules = {by_file[path] for path in changed if path in by_file}
    existing = {folder.as_posix() for file in everything for folder in PurePosixPath(file).parents}
    folders = {folder for path in changed for folder in _folders_for(path, existing)}
    near = {file for file in everything if any(_mirrors(file, path) for path in changed)}
    importing = {sources.files[name] for name in sources.tests if modules and sources.used_by(name) & modules}
    beside = {file for file in everything if any(_is_below(file, each) for each in folders)}
    # The nearest first: who waits for an answer learns most from them.
    files = (*sorted(near), *sorted((importing | beside) - near))
    return Choice(
        files,
        f"{len(files)} of {len(everything)} test files for {len(changed)} changed files: {len(near)} mirror them, "
        f"{len(importing - near)} import them, {len(beside - importing - near)} belong to their folders",
    )


def _folders_for(path: str, existing: Set[str]) -> tuple[str, ...]:
    """The folders of tests that a file belongs to."""
    for folder, tests in FOLDERS.items():
        if _is_below(path, folder):
            return tests
    parts = PurePosixPath(path).parent.parts
    if parts[:2] == ("src", "holdfast"):
        # Readers of harnesses, say, are loaded by names that are put together: no import shows who depends on them.
        mirrored = ("tests", *parts[2:])
        nearest = next(
            each for each in (mirrored[:length] for length in range(len(mirrored), 0, -1)) if _join(each) in existing
        )
        return () if len(nearest) == 1 else (_join(nearest),)
    if parts[:1] == ("tests",) and (not path.endswith(".py") or path.endswith("/conftest.py")):
        return (_join(parts),)
    return ()


def _join(parts: Sequence[str]) -> str:
    return "/".join(parts)


def _mirrors(test: str, path: str) -> bool:
    """Whether a test file is the changed file, or the one named after it."""
    if test == path:
        return True
    if not path.startswith("src/holdfast/"):
        return False
    mirrored = PurePosixPath("tests", *PurePosixPath(path).parts[2:])
    stem = mirrored.parent.name if mirrored.stem == "__init__" else mirrored.stem
    folder = mirrored.parent.parent if mirrored.stem == "__init__" else mirrored.parent
    return test in (f"{folder}/test_{stem}.py", f"{mirrored.parent}/test_{stem}.py")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def changed_files(checkout: Path) -> list[str]:
    """What differs from where this branch left main (on main itself: from the last commit), committed or not."""
    head = _git(checkout, "rev-parse", "HEAD")
    for main in ("main", "origin/main"):
        base = _git(checkout, "merge-base", "HEAD", main)
        if base and base != head:
            break
    else:
        base = _git(checkout, "rev-parse", "HEAD~1") or head
    differing = _git(checkout, "diff", "--name-only", "--no-renames", base)
    untracked = _git(checkout, "ls-files", "--others", "--exclude-standard")
    return [*differing.splitlines(), *untracked.splitlines()]


def _git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> None:
    """Print the chosen files, and on standard error one line on why."""
    checkout = Path(__file__).parents[2]
    choice = choose(changed_files(checkout), read_sources(checkout))
    sys.stderr.write(f"  {'changed':<12} {choice.why}\n")
    sys.stdout.write("".join(f"{file}\n" for file in choice.files))


if __name__ == "__main__":
    main()
