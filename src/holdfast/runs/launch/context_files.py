"""Context files: what an agent has to know beyond its prompt, such as a persona, and where its files came from.

They are beside the workspace, not in it: so they are in no diff and no commit, and a repository cannot have a link in
their place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import CreateFailed
from holdfast.api.run.repositories import Source
from holdfast.runs.launch.plan import Options

FOLDER: Final = (".holdfast", "context")
"""Below the home folder of the box."""
REPOSITORY: Final = "00-repository.md"
_SECONDS: Final = 60.0


def context_of(options: Options, source: Source | None) -> dict[str, str]:
    """Returns the context files of a session by name, with one about the repository that its files came from."""
    about = {} if source is None else {REPOSITORY: describe_source(source, options.box.workdir)}
    return {**about, **{each.name: each.text for each in options.context}}


def describe_source(source: Source, workdir: str) -> str:
    known = {
        "Repository": source.repository,
        "Branch or tag": source.ref,
        "Commit": source.commit,
        "Folder of the repository": source.folder,
    }
    lines = [f"- {name}: `{value}`" for name, value in known.items() if value is not None]
    changed = ["- With changes that were not committed."] if source.changed else []
    return "\n".join(["# The repository", "", f"The files in `{workdir}` came from here:", "", *lines, *changed, ""])


def context_hint(options: Options) -> str | None:
    """Returns what tells an agent about its context files, or None if the user gave none."""
    if not options.context:
        return None
    names = ", ".join(sorted(each.name for each in options.context))
    return f"Before you begin, read these files in ~/{'/'.join(FOLDER)}, and do as they say: {names}."


async def write_context(box: Box, files: Mapping[str, str]) -> None:
    """Write context files into a box. Follows no links there. Raises `BoxError`."""
    command = [*await box.python(), "-I", "-S", "-B", "-c", _program()]
    request = json.dumps({"root": FOLDER, "files": dict(files)}).encode()
    done = await box.exec(command, stdin=request, timeout=_SECONDS, max_output=64 * 1024)
    try:
        answer = json.loads(done.stdout)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not done.ok:
        raise CreateFailed(f"the context files cannot be written: exit code {done.exit_code}")
    if "problem" in answer:
        raise CreateFailed(f"the context files cannot be written: {str(answer['problem'])[:300]}")


@cache
def _program() -> str:
    return resources.files("holdfast.guest").joinpath("context_files.py").read_text()
