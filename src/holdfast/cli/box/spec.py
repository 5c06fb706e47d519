"""Parses the values of `holdfast box create`: variables, labels, volumes and mounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.errors import usage_error

if TYPE_CHECKING:
    from holdfast.api.box.spec import HostMount, VolumeMount


def parse_env(texts: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Parse `NAME=VALUE`; `NAME` alone takes its value from `environment`."""
    env: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise usage_error(
                f"{text!r} is not a variable", "write it as --env NAME=value, or --env NAME for your own value"
            )
        if equals:
            env[name] = value
        elif name in environment:
            env[name] = environment[name]
        else:
            raise usage_error(
                f"{name} is not set in your environment", f"set it, or give its value: --env {name}=value"
            )
    return env


def read_env_file(path: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Read variables as `parse_env` takes them, one per line. Empty lines and lines that start with # are ignored."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is not text"
        raise usage_error(f"cannot read the env file {path}: {reason}") from None
    return parse_env((line for line in lines if line.strip() and not line.lstrip().startswith("#")), environment)


def parse_box_labels(texts: Iterable[str]) -> dict[str, str]:
    """`team:core` or `team=core`; `team` alone has an empty value."""
    labels: dict[str, str] = {}
    for text in texts:
        at = min((place for place in (text.find(":"), text.find("=")) if place >= 0), default=len(text))
        if not text[:at]:
            raise usage_error(f"{text!r} is not a label", "write it as --label team:core")
        labels[text[:at]] = text[at + 1 :]
    return labels


def parse_volume(text: str) -> VolumeMount:
    """`NAME[/SUB]:/PATH[:ro]`."""
    from holdfast.api.box.spec import VolumeMount

    source, path, mode = _mount_parts(text, "--volume name:/path, name/folder:/path or name:/path:ro")
    name, _, subpath = source.partition("/")
    return VolumeMount(name, path, subpath.strip("/"), read_only=mode == "ro")


def parse_mount(text: str) -> HostMount:
    """`HOSTPATH:/PATH[:rw]`, read-only without `:rw`. A relative host path starts in the current folder."""
    from holdfast.api.box.spec import HostMount

    source, path, mode = _mount_parts(text, "--mount /host/path:/path, with :rw to let the box write")
    return HostMount(str(Path(source).absolute()), path, read_only=mode != "rw")


def _mount_parts(text: str, form: str) -> tuple[str, str, str]:
    source, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not source or not path.startswith("/") or mode not in ("", "ro", "rw"):
        raise usage_error(f"{text!r} is not a mount", f"write it as {form}")
    return source, path.rstrip("/") or "/", mode
