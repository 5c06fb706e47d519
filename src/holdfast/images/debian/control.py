"""Debian's control files: stanzas of fields. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Stanzas as mappings with the names in lower case. Comments and lines that are no fields are left out.

    A continued field keeps its line ends; its first line is what stands behind the colon.
    """
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line.strip()
        else:
            before, colon, after = line.partition(":")
            name = before.strip().lower() if colon else ""
            if name:
                fields[name] = after.strip()
    if fields:
        yield fields


def stanza(text: str) -> dict[str, str]:
    """The first one; empty where there is none."""
    return next(stanzas(text), {})


def words(fields: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(fields.get(name, "").split())
