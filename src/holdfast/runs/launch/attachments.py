"""Files and images that belong to a prompt, for agents that get them as files in their box. Pure.

An agent with a server gets them with its prompt (`hosted`). Every other one can read a file, and most can look at an
image.
"""

from __future__ import annotations

import mimetypes
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

FOLDER: Final = ".holdfast/attachments"
"""Below the home folder of the box: beside the workspace, so that they are in no diff."""
_ODD: Final = re.compile(r"[^\w.-]+")
_LONGEST_NAME: Final = 100


def attached_files(attachments: Sequence[Mapping[str, Any]], home: str, run: str) -> dict[str, bytes]:
    """Returns the contents of attachments by their paths in the box, in their order."""
    return {
        f"{home}/{FOLDER}/{run}/{_name(number, each)}": b64decode(str(each["data"]))
        for number, each in enumerate(attachments, 1)
    }


def with_attachments(prompt: str, attachments: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> str:
    """Returns a prompt that names the files that belong to it."""
    if not attachments:
        return prompt
    named = [f"- {path} ({each['mime']})" for path, each in zip(paths, attachments, strict=True)]
    # At the end: a slash command begins with its slash.
    return "\n".join([prompt, "", "[These files belong to this message. Look at them first:", *named, "]"])


def _name(number: int, attachment: Mapping[str, Any]) -> str:
    name = str(attachment.get("filename") or "")
    if not name:
        name = f"file{mimetypes.guess_extension(str(attachment['mime'])) or ''}"
    return f"{number}-{_ODD.sub('_', name)[-_LONGEST_NAME:]}"
