"""The operations on pull requests and files of repositories."""

from __future__ import annotations

from typing import Final

from holdfast.api.tools.operation import Field, Operation, ToolGroup, choice, integer, list_of, text

_NAME: Final = text(100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_OWNER: Final = Field("owner", "The owner of the repository. Default: that of this session's repository.", _NAME)
_REPO: Final = Field("repo", "The name of the repository. Default: this session's repository.", _NAME)
_BRANCH: Final = text(255, pattern=r"^[^\s~^:?*\[\\-][^\s~^:?*\[\\]*$")
_BODY: Final = text(60_000, empty=True)
_NUMBER: Final = Field("prNumber", "The number of the pull request.", integer(1, 1 << 31), required=True)

OPERATIONS: Final = (
    Operation(
        name="create_pull_request",
        group=ToolGroup.GITHUB,
        route="POST /api/create-pull-request",
        description=(
            "Open a pull request for a branch that you have pushed, or return the one that is open for it. The session"
            " needs a secret for the repository that may push."
        ),
        fields=(
            Field("branch", "The branch with the changes.", _BRANCH, required=True),
            Field("title", "The title.", text(300), required=True),
            Field("body", "The description.", _BODY),
            Field("base", "The branch to merge into. Default: the default branch of the repository.", _BRANCH),
            _OWNER,
            _REPO,
        ),
        result="number, url, title, state",
    ),
    Operation(
        name="update_pull_request",
        group=ToolGroup.GITHUB,
        route="POST /api/update-pull-request",
        description="Change the title, the description, the state or the labels of a pull request.",
        fields=(
            _NUMBER,
            Field("title", "A new title.", text(300)),
            Field("body", "A new description.", _BODY),
            Field("state", "Close it, or open it again.", choice("open", "closed")),
            Field("labels", "All its labels.", list_of(text(50), 50)),
            _OWNER,
            _REPO,
        ),
        result="number, url, title, state",
    ),
    Operation(
        name="list_pull_requests",
        group=ToolGroup.GITHUB,
        route="GET /api/pull-requests",
        description="List pull requests, the newest first.",
        fields=(
            _OWNER,
            _REPO,
            Field("state", "Only those in this state. Default: open.", choice("open", "closed", "all")),
            Field("limit", "How many at most. Default: 30.", integer(1, 100)),
        ),
        result="pulls [{number, title, state, url, head, base, author, draft}]",
        changes=False,
    ),
    Operation(
        name="inspect_pull_request",
        group=ToolGroup.GITHUB,
        route="GET /api/pull-request",
        description="Show a pull request with its changed files and its comments. They may be written by anybody.",
        fields=(
            _NUMBER,
            _OWNER,
            _REPO,
            Field("filesLimit", "How many files at most. Default: 30.", integer(0, 100)),
            Field("commentsLimit", "How many comments at most. Default: 30.", integer(0, 100)),
        ),
        result="data {number, title, body, state, url, files, comments, …}",
        changes=False,
    ),
    Operation(
        name="report_git_state",
        group=ToolGroup.GITHUB,
        route="POST /api/git-state",
        description="Tell people which branch you work on.",
        fields=(
            Field("branch", "The branch.", text(255)),
            Field("baseBranch", "The branch that it began at.", text(255)),
            Field("commitCount", "How many commits it has beyond that.", integer(0, 1 << 31)),
        ),
        result="ok",
    ),
    Operation(
        name="read_repo_file",
        group=ToolGroup.GITHUB,
        route="POST /api/read-repo-file",
        description="Read a file of a repository that this session has a secret for, without cloning it.",
        fields=(
            Field("path", "The path of the file.", text(1000), required=True),
            _OWNER,
            _REPO,
            Field("repoUrl", "The repository, by its URL.", text(2048)),
            Field("ref", "A branch, tag or commit. Default: the default branch.", _BRANCH),
        ),
        result="content, encoding, truncated, path, repo, ref",
        changes=False,
    ),
    Operation(
        name="list_repositories",
        group=ToolGroup.GITHUB,
        route="GET /api/org-repos",
        description="List the repositories that this session has a secret for.",
        fields=(Field("source", "Ignored: there is one source.", text(64)),),
        result="repos [{fullName, host, push}]",
        changes=False,
    ),
)
