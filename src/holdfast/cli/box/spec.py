"""What `holdfast box create` was told, as a `BoxSpec`. Pure but for reading the env file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit

if TYPE_CHECKING:
    from holdfast.api.box.spec import HostMount, VolumeMount

T = TypeVar("T")


def wrong(message: str, next_step: str | None = None) -> CommandError:
    return CommandError(message, next_step=next_step, exit=Exit.USAGE)


def read_value(read: Callable[[str], T], text: str) -> T:
    """A value by its own parser, whose complaint becomes the command's."""
    try:
        return read(text)
    except ValueError as error:
        raise wrong(str(error)) from None


def parse_env(texts: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE` as it stands; `NAME` alone is taken from the caller's environment."""
    env: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise wrong(
                f"{text!r} is not a variable", "write it like --env NAME=value, or --env NAME for your own value"
            )
        if equals:
            env[name] = value
        elif name in environment:
            env[name] = environment[name]
        else:
            raise wrong(f"{name} is not set here", f"set it, or give its value: --env {name}=value")
    return env


def read_env_file(path: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """A line each, as `parse_env` takes them; empty ones and those that begin with # are left out."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is not text"
        raise wrong(f"the env file {path} cannot be read: {reason}") from None
    return parse_env((line for line in lines if line.strip() and not line.lstrip().startswith("#")), environment)


def parse_box_labels(texts: Iterable[str]) -> dict[str, str]:
    """`team:core` or `team=core`; `team` alone has an empty value."""
    labels: dict[str, str] = {}
    for text in texts:
        at = min((place for place in (text.find(":"), text.find("=")) if place >= 0), default=len(text))
        if not text[:at]:
            raise wrong(f"{text!r} is not a label", "write it like --label team:core")
        labels[text[:at]] = text[at + 1 :]
    return labels


def parse_volume(text: str) -> VolumeMount:
    """`NAME[/SUB]:/PATH[:ro]`."""
    from holdfast.api.box.spec import VolumeMount

    source, path, mode = _mount_parts(text, "--volume name:/path, name/folder:/path or name:/path:ro")
    name, _, subpath = source.partition("/")
    return VolumeMount(name, path, subpath.strip("/"), read_only=mode == "ro")


def parse_mount(text: str) -> HostMount:
    """`HOSTPATH:/PATH[:rw]`, read-only unless told otherwise. A relative host path begins where the caller is."""
    from holdfast.api.box.spec import HostMount

    source, path, mode = _mount_parts(text, "--mount /host/path:/path, with :rw where the box may write")
    return HostMount(str(Path(source).absolute()), path, read_only=mode != "rw")


def _mount_parts(text: str, form: str) -> tuple[str, str, str]:
    source, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not source or not path.startswith("/") or mode not in ("", "ro", "rw"):
        raise wrong(f"{text!r} does not say what goes where", f"write it like {form}")
    return source, path.rstrip("/") or "/", mode
