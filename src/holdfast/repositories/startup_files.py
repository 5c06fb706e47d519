"""Files that run code without being started: by a forge, an editor, a shell, git or an agent. Pure.

An agent may change them like any other file. Whoever takes its work home should know, because there is no later moment
to say no: they run when the work is pushed, when the folder is opened or entered, or on the next commit. Programs that
people start themselves, such as tests and build files, are not among them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from holdfast.repositories.names import seen_name

_CI: Final = "your CI runs it when it is pushed"
_EDITOR: Final = "an editor can run it when the folder is opened"
_SHELL: Final = "a shell can run it when the folder is entered"
_COMMIT: Final = "git can run it on a commit"
_AGENT: Final = "an agent can run it when it starts here"
_HOLDFAST: Final = "holdfast run sets up boxes by it"

_BEHIND: Final = "it is a link, and what is behind it can run without being started"
_TOO_MANY: Final = "there are too many links to tell what runs it"
_MOST_STEPS: Final = 40
"""Links that one path may lead through, as in Linux."""
_MOST_PLACES: Final = 2000
_MOST_DEPTH: Final = 3
"""Links behind links, within one path that runs."""

_Links = Mapping[bytes, tuple[bytes, ...] | None]
"""By path: the parts of the target, or None if it is outside."""

_PATTERNS: Final = tuple(
    (re.compile(rb"(?:.*/)?(?:%b)" % pattern, re.DOTALL), why)
    for pattern, why in (
        (rb"\.(?:github|gitea|forgejo)/(?:workflows|actions)/.*", _CI),
        (rb"\.gitlab-ci\.ya?ml|\.gitlab/ci/.*|\.circleci/.*|\.buildkite/.*|\.woodpecker(?:/.*|\.ya?ml)", _CI),
        (rb"azure-pipelines\.ya?ml|bitbucket-pipelines\.ya?ml|\.(?:travis|drone|cirrus|appveyor)\.ya?ml", _CI),
        (rb"appveyor\.ya?ml|jenkinsfile|cloudbuild\.ya?ml|\.onedev-buildspec\.ya?ml", _CI),
        (rb"\.builds/.*|\.build\.ya?ml|\.(?:tekton|semaphore|teamcity)/.*", _CI),
        (rb"\.vscode/(?:tasks|settings|mcp)\.json|[^/]*\.code-workspace", _EDITOR),
        (rb"\.idea/(?:startup\.xml|runconfigurations/.*)|\.run/[^/]*\.run\.xml", _EDITOR),
        (rb"[._](?:exrc|g?vimrc)|\.nvim\.lua|\.nvimrc|\.lvimrc|\.lazy\.lua|\.dir-locals(?:-2)?\.el", _EDITOR),
        (rb"\.zed/(?:settings|tasks|debug)\.json|\.helix/(?:languages|config)\.toml", _EDITOR),
        (rb"\.devcontainer/.*|\.devcontainer\.json", _EDITOR),
        (rb"\.envrc|\.autoenv(?:\.zsh)?|\.?mise(?:\.[^/]*)?\.toml", _SHELL),
        (rb"\.?mise/(?:config(?:\.[^/]*)?|conf\.d/[^/]*)\.toml", _SHELL),
        (rb"\.husky/.*|\.githooks/.*|\.?pre-commit-config\.ya?ml", _COMMIT),
        (rb"\.?lefthook(?:-local)?\.(?:ya?ml|jsonc?|toml)|\.lefthook(?:-local)?/.*", _COMMIT),
        (rb"\.claude/(?:settings(?:\.local)?\.json|hooks/.*)|\.mcp\.json|\.cursor/(?:mcp|hooks)\.json", _AGENT),
        (rb"\.codex/(?:config\.toml|hooks\.json)|opencode\.jsonc?|\.opencode/.*|\.pi/.*", _AGENT),
        (
            rb"\.(?:gemini|qwen)/settings\.json|\.kiro/(?:settings/mcp\.json|hooks/.*)|\.(?:roo|amazonq)/mcp\.json",
            _AGENT,
        ),
        (rb"holdfast\.toml", _HOLDFAST),
    )
)
_FOLDERS: Final = frozenset(
    b".github .gitea .forgejo .gitlab .circleci .buildkite .woodpecker .builds .tekton .semaphore .teamcity .vscode"
    b" .idea .run .zed .helix .devcontainer .mise mise .config .husky .githooks .lefthook .lefthook-local .claude"
    b" .cursor .codex .opencode .pi .gemini .qwen .kiro .roo .amazonq".split()
)
"""Where files of these patterns are. A link with such a name can bring any of them."""


def why_it_runs(path: bytes) -> str | None:
    """Returns who runs a file without being asked to, or None. Some file systems ignore case and invisible characters,
    so both do not matter here. Links are for `startup_files`.
    """
    seen = _seen(path)
    return next((why for pattern, why in _PATTERNS if pattern.fullmatch(seen)), None)


def startup_files(paths: Iterable[bytes], links: Mapping[bytes, bytes]) -> dict[bytes, str]:
    """Returns the files among these that run without being started, under their own path or behind a link, and who
    runs them. `links` has the target of each link that will be there.
    """
    tree = {_seen(path): _parts(target) for path, target in links.items()}
    behind = _behind_links(tree)
    found: dict[bytes, str] = {}
    for path in paths:
        why = why_it_runs(path) or _why_by_link(_seen(path), tree, behind)
        if why is not None:
            found[path] = why
    return found


@dataclass(frozen=True, slots=True)
class _Behind:
    """The places that links lead to where files run without being started."""

    names: Mapping[bytes, Sequence[bytes]]
    """By real path: the paths with links in them."""
    through: Set[bytes]
    """The links on the way."""
    complete: bool


def _why_by_link(path: bytes, tree: _Links, behind: _Behind) -> str | None:
    if path in behind.through or (path in tree and _may_bring(path)):
        return _BEHIND
    parts = path.split(b"/")
    for count in range(len(parts) + 1):
        rest = b"".join(b"/" + part for part in parts[count:])
        for name in behind.names.get(b"/".join(parts[:count]), ()):
            if (why := why_it_runs(name + rest)) is not None:
                return f"{why}, through a link"
    return None if behind.complete else _TOO_MANY


def _behind_links(tree: _Links) -> _Behind:
    ordered = sorted(tree)
    waiting = [(link, link, 0) for link in ordered if _may_bring(link)]
    names: dict[bytes, list[bytes]] = {}
    through: set[bytes] = set()
    count = 0
    while waiting and count + len(waiting) <= _MOST_PLACES:
        name, link, depth = waiting.pop()
        count += 1
        real = _resolved(link, tree, through)
        if real is None:
            continue
        names.setdefault(real, []).append(name)
        if depth < _MOST_DEPTH:
            # Also links below that place: they have a path that begins with the name.
            begin = bisect_left(ordered, real + b"/") if real else 0
            end = bisect_left(ordered, real + b"0") if real else len(ordered)  # "0" follows "/"
            below = ordered[begin : min(end, begin + _MOST_PLACES + 1)]
            waiting += [(name + (each[len(real) :] if real else b"/" + each), each, depth + 1) for each in below]
    return _Behind(names, through, complete=not waiting)


def _resolved(path: bytes, tree: _Links, through: set[bytes]) -> bytes | None:
    """Returns the real path, or None if it leads out of the tree or nowhere. Links on the way go into `through`."""
    waiting = list(reversed(path.split(b"/")))
    real: list[bytes] = []
    steps = 0
    while waiting:
        part = waiting.pop()
        if part == b"..":
            if not real:
                return None
            real.pop()
            continue
        real.append(part)
        here = b"/".join(real)
        if here in tree:
            target = tree[here]
            steps += 1
            if target is None or steps > _MOST_STEPS:
                return None
            through.add(here)
            real.pop()
            waiting += reversed(target)
    return b"/".join(real)


def _parts(target: bytes) -> tuple[bytes, ...] | None:
    """Returns the parts of a link's target, or None if it is outside."""
    if target.startswith(b"/"):
        return None
    return tuple(part if part == b".." else seen_name(part) for part in target.split(b"/") if part not in (b"", b"."))


def _may_bring(link: bytes) -> bool:
    return why_it_runs(link) is not None or not _FOLDERS.isdisjoint(link.split(b"/"))


def _seen(path: bytes) -> bytes:
    return b"/".join(map(seen_name, path.split(b"/")))
