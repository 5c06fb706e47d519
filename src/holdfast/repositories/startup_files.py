"""Files that run code without being started: by a forge, an editor, a shell, git or an agent. Pure.

An agent may change them like any other file. Whoever takes its work home should know, because there is no later moment
to say no: they run when the work is pushed, when the folder is opened or entered, on the next commit, or when a tool
looks at the folder for another purpose: a package is installed, tests are listed, a file is checked. Programs that
people start themselves, such as scripts and a Makefile, are not among them.
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
_STEERS: Final = "an agent follows it when it works here"
_PACKAGES: Final = "a package manager or a compiler can run it, and an editor can start that"
_CHECKS: Final = "a tool runs it when it lists tests or checks files, and an editor can start that"
_STARTS: Final = "a program that is started in the folder can run it"
_DEPLOYS: Final = "a service builds by it when it is pushed"
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

_NAMES: Final = (
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
    # forges and their bots
    (rb"\.github/(?:dependabot\.ya?ml|copilot-setup-steps\.ya?ml)|(?:\.github/|\.gitlab/)?renovate\.json5?", _CI),
    (rb"\.renovaterc(?:\.json5?)?|[^/]*\.gitlab-ci\.ya?ml|\.gitlab/agents/.*|\.(?:workflow|coding-ci)/.*", _CI),
    (
        rb"(?:\.?azure-pipelines|\.azuredevops|\.pipelines|\.vsts|\.ado)/.*\.ya?ml|\.vsts-ci\.ya?ml|\.cnb\.ya?ml",
        _CI,
    ),
    (rb"azure-pipelines[^/]*\.ya?ml|cloudbuild[^/]*\.(?:ya?ml|json)|[^/]*jenkinsfile|jenkinsfile\.groovy", _CI),
    (rb"\.jenkins/.*|bamboo-specs/.*|\.drone\.(?:star|jsonnet)|\.cirrus\.star|\.vela\.(?:ya?ml|star|py)", _CI),
    (rb"\.?zuul(?:\.ya?ml|\.d/.*)|\.prow(?:\.ya?ml|/.*)|\.ci-operator\.ya?ml|\.taskcluster\.ya?ml", _CI),
    (rb"\.?evergreen\.ya?ml|[^/]*\.gocd\.(?:ya?ml|json)|\.harness/.*|\.?codefresh(?:\.ya?ml|/.*)", _CI),
    (rb"buildspec[^/]*\.ya?ml|appspec\.ya?ml|bitrise\.ya?ml|codemagic\.ya?ml|\.?screwdriver\.ya?ml", _CI),
    (rb"\.?buddy(?:\.ya?ml|/.*)|codeship-(?:services|steps)\.ya?ml|\.?(?:wercker|shippable|magnum)\.ya?ml", _CI),
    (rb"circle\.ya?ml|\.packit\.ya?ml|\.copr/.*|garnix\.ya?ml|\.cirun\.ya?ml|\.dagger/.*|dagger\.json", _CI),
    (rb"\.(?:scrutinizer|styleci|codeclimate|lgtm|abstruse)\.ya?ml|\.deepsource\.toml|\.cds/.*", _CI),
    # services that build what is pushed
    (
        rb"netlify\.toml|(?:vercel|now)\.json|render\.ya?ml|heroku\.ya?ml|procfile|app\.json|amplify\.ya?ml",
        _DEPLOYS,
    ),
    (
        rb"railway\.(?:toml|json)|nixpacks\.(?:toml|json)|\.do/[^/]*\.ya?ml|apphosting[^/]*\.ya?ml|fly\.toml",
        _DEPLOYS,
    ),
    (rb"\.?readthedocs\.ya?ml|wrangler\.(?:toml|jsonc?)|skaffold\.ya?ml|\.platform(?:\.app\.yaml|/.*)", _DEPLOYS),
    # editors and workspaces in the cloud
    (rb"\.vs/(?:tasks|launch)\.vs\.json|cmakesettings\.json", _EDITOR),
    (rb"\.(?:theia|fleet)/(?:tasks|settings|launch|run)\.json|[^/]*\.sublime-(?:project|workspace)", _EDITOR),
    (rb"\.idea/(?:workspace|externaldependencies|watchertasks|gradle)\.xml|\.idea/tools/.*", _EDITOR),
    (rb"\.project|\.externaltoolbuilders/.*|\.settings/.*|nbproject/.*|\.bsp/.*\.json|\.bloop/.*\.json", _EDITOR),
    (
        rb"\.vim/.*|\.nvim/.*|\.nvimrc\.lua|\.exrc\.lua|coc-settings\.json|\.neoconf\.json|\.nlsp-settings/.*",
        _EDITOR,
    ),
    (rb"\.ycm_extra_conf\.py|\.vimspector\.json|\.projections\.json|session\.vim|\.kakrc(?:\.local)?", _EDITOR),
    (
        rb"\.gitpod\.(?:ya?ml|dockerfile)|\.replit|replit\.nix|\.idx/.*|\.codesandbox/.*|sandbox\.config\.json",
        _EDITOR,
    ),
    (rb"\.clangd|compile_flags\.txt|compile_commands\.json|\.ccls|\.merlin|hie\.ya?ml|\.tern-project", _EDITOR),
    (rb"[^/]*\.(?:cs|fs|vb|vcx)proj|[^/]*\.(?:props|targets|suo)|[^/]*\.(?:vcxproj|csproj)\.user", _EDITOR),
    # shells
    (
        rb"\.env(?:\.(?!example|sample|template|dist)[^/]*)?|\.in|\.out|\.autoenv[^/]*|\.?envrc\.[^/]*|\.shadowenv\.d/.*|\.hermit/.*",
        _SHELL,
    ),
    (rb"devenv\.(?:nix|ya?ml)|devbox\.json|\.flox/.*|(?:flake|shell|default)\.nix|activate-hermit", _SHELL),
    (rb"\.(?:z|ba|k|c|tc)shrc|\.(?:zshenv|zprofile|zlogin|profile|bash_profile|bash_login|login)", _SHELL),
    (rb"\.tool-versions|\.tmuxinator\.ya?ml|\.tmux\.conf|\.screenrc|\.mise-tasks/.*|\.?mise-tasks/.*", _SHELL),
    # hooks of git
    (
        rb"\.?git-?hooks/.*|\.hooks/.*|\.huskyrc[^/]*|\.overcommit\.ya?ml|\.git-hooks/.*|\.pre-commit-hooks\.ya?ml",
        _COMMIT,
    ),
    (rb"\.?commitlint(?:rc)?(?:\.config)?\.[cm]?[jt]s|\.lintstagedrc[^/]*|lint-staged\.config\.[^/]*", _COMMIT),
    (
        rb"\.?simple-git-hooks\.(?:[cm]?js|json)|\.rusty-hook\.toml|\.?captainhook\.json|\.?grumphp\.ya?ml(?:\.dist)?",
        _COMMIT,
    ),
    (rb"prek\.toml|hk\.pkl|\.yorkie/.*|\.czrc|\.cz\.(?:toml|json|ya?ml)|\.gitconfig", _COMMIT),
    # agents
    (rb"\.claude/.*|\.codex/.*|\.cursor/.*|\.(?:gemini|qwen|windsurf|continue|amp|crush|factory|junie)/.*", _AGENT),
    (
        rb"\.aider\.conf\.ya?ml|\.?crush\.json|\.goosehints|\.?mcp\.json|\.vscode/mcp\.json|\.clinerules(?:/.*)?",
        _AGENT,
    ),
    (rb"(?:agents|claude|gemini|qwen|crush|conventions)(?:\.(?:local|override))?\.md", _STEERS),
    (rb"\.(?:cursor|windsurf|roo|kilocode)rules|\.roo/rules[^/]*/.*|\.kiro/.*|\.amazonq/.*|\.augment/.*", _STEERS),
    (rb"\.github/(?:copilot-instructions\.md|(?:instructions|prompts|agents|chatmodes)/.*)|\.rules", _STEERS),
    # packages and compilers: what they run while they install, build, or are asked by an editor
    (
        rb"package\.json|\.npmrc|\.yarnrc(?:\.ya?ml)?|\.yarn/(?:releases|plugins)/.*|\.pnp\.[cm]?js|\.pnpmfile\.[cm]?js",
        _PACKAGES,
    ),
    (rb"pnpm-workspace\.ya?ml|bunfig\.toml|deno\.jsonc?|binding\.gyp|lerna\.json|\.nxrc|nx\.json", _PACKAGES),
    (rb"setup\.py|pip\.conf|pip\.ini|uv\.toml|hatch_build\.py|[^/]*\.pth|(?:site|user)customize\.py", _PACKAGES),
    (
        rb"build\.rs|\.cargo/config(?:\.toml)?|rust-toolchain(?:\.toml)?|\.gemrc|\.bundle/config|gemfile|[^/]*\.gemspec",
        _PACKAGES,
    ),
    (
        rb"(?:build|settings|init)\.gradle(?:\.kts)?|gradle\.properties|gradle/wrapper/.*|gradlew(?:\.bat)?|buildsrc/.*",
        _PACKAGES,
    ),
    (
        rb"\.mvn/.*|mvnw(?:\.cmd)?|pom\.xml|[^/]*\.sbt|\.sbtopts|\.jvmopts",
        _PACKAGES,
    ),
    (
        rb"build\.(?:sc|mill)|\.mill-[^/]*|mix\.exs|rebar\.config(?:\.script)?|project\.clj|deps\.edn|\.lein[^/]*",
        _PACKAGES,
    ),
    (
        rb"package\.swift|cmakelists\.txt|cmake(?:user)?presets\.json|\.?bazelrc|\.bazelversion",
        _PACKAGES,
    ),
    (
        rb"\.buckconfig(?:\.local)?|\.buckroot|nuget\.config|global\.json|paket\.dependencies|setup\.hs|dune(?:-project)?",
        _PACKAGES,
    ),
    (
        rb"composer\.json|\.condarc|\.pdm\.toml|pixi\.toml|build\.zig|[^/]*\.cabal|stack\.ya?ml|cabal\.project[^/]*",
        _PACKAGES,
    ),
    # tests and checks, which editors start too
    (rb"conftest\.py|noxfile\.py|\.?pylintrc(?:\.toml)?|\.?mypy\.ini|\.flake8|\.pre-commit/.*", _CHECKS),
    (rb"\.?(?:eslint|prettier|stylelint|remark|htmlhint|swc|knip)(?:rc|\.config)(?:\.[^/]*)?", _CHECKS),
    (
        rb"(?:vite|vitest|webpack|rollup|babel|jest|karma|cypress|playwright|tailwind|postcss|svelte|astro|next|nuxt|metro"
        rb"|rspack|rsbuild|esbuild|tsup|unocss|windi|wdio|ava|mocha)(?:\.[^/]*)?\.config\.[^/]*",
        _CHECKS,
    ),
    (rb"\.(?:babel|mocha|swc|postcss|jest|nyc)rc(?:\.[^/]*)?|(?:gulp|grunt)file\.[^/]*|\.?biome\.jsonc?", _CHECKS),
    (
        rb"\.rubocop\.ya?ml|\.solargraph\.ya?ml|\.rspec|\.proverc|\.perl(?:tidy|critic)rc|\.credo\.exs|\.formatter\.exs",
        _CHECKS,
    ),
    (
        rb"phpstan[^/]*\.neon(?:\.dist)?|psalm\.xml(?:\.dist)?|\.phan/config\.php|\.php-cs-fixer[^/]*\.php|rector\.php",
        _CHECKS,
    ),
    (
        rb"phpunit\.xml(?:\.dist)?|\.golangci\.(?:ya?ml|toml|json)|\.scalafix\.conf|\.swiftlint\.ya?ml|analysis_options\.yaml",
        _CHECKS,
    ),
    # what programs read where they are started
    (
        rb"\.(?:gdb|lldb)init(?:-[^/]*)?|\.pdbrc(?:\.py)?|\.pythonrc(?:\.py)?|\.ipython/.*|\.jupyter/.*|jupyter_[^/]*_config\.py",
        _STARTS,
    ),
    (
        rb"\.(?:irb|pry|psql|sqlite|wget|curl|my|octave|ghci|inputrc|digrc|iex)(?:rc|\.exs)?|\.r(?:profile|environ|data)",
        _STARTS,
    ),
    (
        rb"renv/activate\.r|startup\.m|\.octaverc|\.ocamlinit|\.iex\.exs|\.user\.ini|\.htaccess|web\.config|\.julia/.*",
        _STARTS,
    ),
    (
        rb"(?:docker-)?compose(?:\.[^/]*)?\.override\.ya?ml|\.ansible\.cfg|ansible\.cfg|\.terraformrc|terragrunt\.hcl",
        _STARTS,
    ),
    (rb"holdfast\.toml", _HOLDFAST),
)
"""Patterns of paths, in any folder, in small letters."""
_PATTERNS: Final = tuple((re.compile(rb"(?:.*/)?(?:%b)" % pattern, re.DOTALL), why) for pattern, why in _NAMES)
_ANY: Final = re.compile(rb"(?:.*/)?(?:%b)" % b"|".join(pattern for pattern, _ in _NAMES), re.DOTALL)
"""One pattern is faster than many for the usual file, which is none of these."""
_FOLDERS: Final = frozenset(
    b".github .gitea .forgejo .gitlab .circleci .buildkite .woodpecker .builds .tekton .semaphore .teamcity .vscode"
    b" .idea .run .zed .helix .devcontainer .mise mise .config .husky .githooks .lefthook .lefthook-local .claude"
    b" .cursor .codex .opencode .pi .gemini .qwen .kiro .roo .amazonq .workflow .coding-ci .azure-pipelines"
    b" azure-pipelines .azuredevops .pipelines .vsts .ado .jenkins bamboo-specs zuul.d .zuul.d .prow .harness codefresh"
    b" .codefresh .buddy buddy .copr .dagger .cds .do .platform .vs .theia .fleet .externaltoolbuilders .settings"
    b" nbproject .bsp .bloop .vim .nvim .nlsp-settings .idx .codesandbox .shadowenv.d .hermit .flox .mise-tasks"
    b" mise-tasks git-hooks .git-hooks githooks .hooks .yorkie .windsurf .continue .amp .crush .factory .junie"
    b" .clinerules .augment .yarn .cargo .bundle gradle buildsrc .mvn .pre-commit .phan .ipython .jupyter renv .julia"
    b"".split()
)
"""Where files of these patterns are. A link with such a name can bring any of them."""


def why_it_runs(path: bytes) -> str | None:
    """Returns who runs a file without being asked to, or None. Some file systems ignore case and invisible characters,
    so both do not matter here. Links are for `startup_files`.
    """
    seen = _seen(path)
    if _ANY.fullmatch(seen) is None:
        return None
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
