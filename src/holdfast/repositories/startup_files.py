"""Files that run code without being started: by a forge, an editor, a shell, git or an agent. Pure.

An agent may change them like any other file. Whoever takes its work home should know, because there is no later moment
to say no: they run when the work is pushed, when the folder is opened or entered, or on the next commit. Programs that
people start themselves, such as tests and build files, are not among them.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.repositories.names import as_seen

_CI: Final = "your CI runs it when it is pushed"
_EDITOR: Final = "an editor can run it when the folder is opened"
_SHELL: Final = "a shell can run it when the folder is entered"
_COMMIT: Final = "git can run it on a commit"
_AGENT: Final = "an agent can run it when it starts here"
_HOLDFAST: Final = "holdfast run sets up boxes by it"

_PATTERNS: Final = tuple(
    (re.compile(rb"(?:.*/)?(?:%b)" % pattern), why)
    for pattern, why in (
        (rb"\.(?:github|gitea|forgejo)/(?:workflows|actions)/.*", _CI),
        (rb"\.gitlab-ci\.ya?ml|\.gitlab/ci/.*|\.circleci/.*|\.buildkite/.*|\.woodpecker(?:/.*|\.ya?ml)", _CI),
        (rb"azure-pipelines\.ya?ml|bitbucket-pipelines\.ya?ml|\.(?:travis|drone|cirrus|appveyor)\.ya?ml", _CI),
        (rb"appveyor\.ya?ml|jenkinsfile", _CI),
        (
            rb"\.vscode/(?:tasks|settings|mcp)\.json|[^/]*\.code-workspace|\.idea/startup\.xml|\.exrc|\.nvim\.lua",
            _EDITOR,
        ),
        (rb"\.devcontainer/.*|\.devcontainer\.json", _EDITOR),
        (rb"\.envrc|\.?mise(?:\.local)?\.toml|\.autoenv(?:\.zsh)?", _SHELL),
        (rb"\.husky/.*|\.githooks/.*|\.?pre-commit-config\.ya?ml|\.?lefthook\.ya?ml", _COMMIT),
        (rb"\.claude/(?:settings(?:\.local)?\.json|hooks/.*)|\.mcp\.json|\.cursor/(?:mcp|hooks)\.json", _AGENT),
        (rb"\.codex/config\.toml|opencode\.jsonc?|\.opencode/.*|\.pi/.*", _AGENT),
        (rb"holdfast\.toml", _HOLDFAST),
    )
)


def why_it_runs(path: bytes) -> str | None:
    """Returns who runs a file without being asked to, or None. Some file systems ignore case and invisible characters,
    so both do not matter here.
    """
    seen = b"/".join(as_seen(part).rstrip(b" .").lower() for part in path.split(b"/"))
    return next((why for pattern, why in _PATTERNS if pattern.fullmatch(seen)), None)
