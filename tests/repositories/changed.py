"""Changed files of a thread, as a server sends them: made from two trees, or forged."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.repositories.changes import ChangedFiles, read_changed_files
from holdfast.runs.workspace.git_trees import GitTrees

Tree = Mapping[str, str | bytes | tuple[str, str]]
"""Contents by path. A pair is a link (`link`, target) or a program (`x`, content)."""


def tar_of(tree: Tree) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in tree.items():
            member = tarfile.TarInfo(name)
            member.mode = 0o644
            if isinstance(content, tuple):
                kind, text = content
                if kind == "link":
                    member.type, member.linkname = tarfile.SYMTYPE, text
                    archive.addfile(member)
                    continue
                member.mode, content = 0o755, text
            data = content.encode() if isinstance(content, str) else content
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    file.seek(0)
    return file


def archive_of(before: Tree, after: Tree, **about: Any) -> io.BytesIO:
    """The archive that a server makes of these two trees."""
    with tempfile.TemporaryDirectory() as folder:
        trees = GitTrees(Path(folder))
        trees.load(tar_of(before), tar_of(after))
        refused = [each.decode("utf-8", "replace") for each in trees.refused]
        given = {"version": 1, "thread": "t-1", "source": None, "refused": refused, **about}
        with trees.changed_files(given) as archive:
            return io.BytesIO(archive.read())


def changed(folder: Path, before: Tree, after: Tree, **about: Any) -> ChangedFiles:
    folder.mkdir(parents=True)
    return read_changed_files(archive_of(before, after, **about), folder)


def forged(files: list[dict[str, Any]], blobs: list[bytes], **about: Any) -> io.BytesIO:
    """An archive that no server of ours would send. `before` and `after` are pairs of a mode and a blob's number."""
    hashes = [hashlib.sha1(b"blob %d\0" % len(each) + each).hexdigest() for each in blobs]
    for file in files:
        for name in ("before", "after"):
            if file.get(name) is not None:
                mode, number = file[name]
                file[name] = [mode, hashes[number]]
            else:
                file[name] = None
        if isinstance(file["path"], bytes):
            file["path"] = os.fsdecode(file["path"])
    head = {"version": 1, "thread": "t-1", "source": None, "ignored": 0, "refused": [], "files": files, **about}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        named = zip((f"blobs/{each}" for each in hashes), blobs, strict=True)
        for name, data in (("changes.json", json.dumps(head).encode()), *named):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    out.seek(0)
    return out
