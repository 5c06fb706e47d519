"""Reads a Dockerfile as far as a box can follow it. Pure: `images` carries the steps out.

Variables may have variables in their values, so that a few lines could become gigabytes. What they become has a limit.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.compat.daytona.http.errors import bad_request

_MOST_STEPS: Final = 200
_MOST_INSTRUCTIONS: Final = 1000
_MOST_EXPANDED: Final = 65_536
"""Characters of all instructions that may have variables, together, with the values in place of them."""
_IGNORED: Final = frozenset({"CMD", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "VOLUME"})
"""They say nothing about the files, Daytona runs no CMD, and a box has one user."""
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True, slots=True)
class Run:
    """A command that is run in the box."""

    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: str | None
    text: str
    """As the log shows it."""


@dataclass(slots=True)
class BuildPlan:
    image: str = ""
    steps: list[Run] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    """What processes of the sandbox get."""
    workdir: str | None = None
    entrypoint: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether nothing has to be built: the image is all."""
        return not self.steps and not self.env and self.workdir is None


def read_dockerfile(text: str) -> BuildPlan:
    """Raises an error that names the first instruction that a box cannot follow."""
    plan, arguments, variables = BuildPlan(), dict[str, str](), _Variables()
    instructions = _instructions(text)
    if len(instructions) > _MOST_INSTRUCTIONS:
        raise bad_request(
            f"the Dockerfile has {len(instructions)} instructions: at most {_MOST_INSTRUCTIONS} are allowed"
        )
    for line in instructions:
        name, _, rest = line.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key.strip()] = _unquoted(value)
        elif name == "FROM":
            if plan.image:
                raise bad_request("this server builds Dockerfiles with one FROM: several stages are not supported")
            plan.image = _image(variables.expanded(rest, arguments))
        elif not plan.image:
            raise bad_request(f"the Dockerfile does not begin with FROM but with {name[:50]}")
        else:
            _add(plan, name, rest, arguments, variables)
            if len(plan.steps) > _MOST_STEPS:
                raise bad_request(f"the Dockerfile has too many steps: at most {_MOST_STEPS} are allowed")
    if not plan.image:
        raise bad_request("the Dockerfile has no FROM")
    return plan


class _Variables:
    """Puts values in place of variables, and counts what comes of it. Each Dockerfile has its own."""

    def __init__(self) -> None:
        self._left = _MOST_EXPANDED

    def expanded(self, text: str, values: Mapping[str, str]) -> str:
        """Raises before a text is made that is too long."""

        def value(match: re.Match[str]) -> str:
            found = values.get(match[1] or match[2], "")
            self._take(len(found))
            return found

        self._take(len(text))
        return _VARIABLE.sub(value, text)

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise bad_request(
                f"the ENV, WORKDIR and FROM of the Dockerfile are too long: with the values of their variables,"
                f" they have at most {_MOST_EXPANDED} characters together"
            )


def _add(plan: BuildPlan, name: str, rest: str, arguments: Mapping[str, str], variables: _Variables) -> None:
    known = {**arguments, **plan.env}
    if name == "RUN":
        rest = re.sub(r"^(--\S+\s+)+", "", rest)
        argv = _json_list(rest) or ("/bin/sh", "-c", rest)
        plan.steps.append(Run(argv, known, plan.workdir, f"RUN {rest}"))
    elif name == "ENV":
        plan.env.update(_pairs(variables.expanded(rest, known)))
    elif name == "WORKDIR":
        path = _unquoted(variables.expanded(rest, known))
        plan.workdir = path if path.startswith("/") else f"{plan.workdir or ''}/{path}"
        plan.steps.append(Run(("mkdir", "-p", plan.workdir), {}, "/", f"WORKDIR {plan.workdir}"))
    elif name == "ENTRYPOINT":
        plan.entrypoint = _json_list(rest) or ((rest and ("/bin/sh", "-c", rest)) or ())
    elif name in ("COPY", "ADD"):
        raise bad_request(
            f"{name} {rest[:100]}: this server takes no build context;"
            " upload the files into a sandbox and take a snapshot"
        )
    elif name not in _IGNORED:
        raise bad_request(f"the Dockerfile has {name[:50]}, which this server cannot follow")


def _instructions(text: str) -> list[str]:
    """The instructions, each on one line, without comments."""
    lines, pending = list[str](), ""
    for raw in text.splitlines():
        if (not pending and not raw.strip()) or raw.lstrip().startswith("#"):
            continue
        if raw.rstrip().endswith("\\"):
            pending += raw.rstrip()[:-1] + " "
            continue
        lines.append((pending + raw).strip())
        pending = ""
    if pending.strip():
        lines.append(pending.strip())
    return lines


def _image(rest: str) -> str:
    words = [word for word in rest.split() if not word.startswith("--")]
    if not words or (len(words) > 1 and (len(words) != 3 or words[1].upper() != "AS")):
        raise bad_request(f"FROM {rest[:100]}: one image is expected")
    return words[0]


def _json_list(text: str) -> tuple[str, ...]:
    if not text.startswith("["):
        return ()
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else ()


def _pairs(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise bad_request(f"ENV {text[:100]}: {error}") from None
    if words and "=" not in words[0]:  # the old form: ENV NAME all of the rest
        name, _, value = text.partition(" ")
        return {name: value.strip()}
    return dict(word.partition("=")[::2] for word in words)


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
