"""The manifests of snapshots are read once each, and again if a file has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.providers.host.disk import layers
from holdfast.providers.host.disk.data_dir import DataDir
from holdfast.providers.host.snapshots import Manifests


def write(data_dir: DataDir, id: str, **labels: str) -> Path:
    snapshot = Snapshot(id, "local", layers.KIND, Holding.REFERENCE, "b-1", None, 1, 5, labels)
    file = data_dir.snapshots / f"{id}.json"
    file.write_text(json.dumps(layers.Manifest(snapshot, ("one",)).to_json()))
    return file


def test_a_manifest_is_read_again_only_if_its_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_dir = DataDir(tmp_path, 0, 0)
    data_dir.snapshots.mkdir()
    read, reads = layers.read_manifest, list[str]()

    def noted(data_dir: DataDir, id: str) -> layers.Manifest:
        reads.append(id)
        return read(data_dir, id)

    monkeypatch.setattr(layers, "read_manifest", noted)
    first, second = write(data_dir, "s-1", a="b"), write(data_dir, "s-2")
    (data_dir.snapshots / ".s-3.json").write_text("{")  # not written to its end
    manifests = Manifests(data_dir)
    assert manifests.all() == manifests.all() == layers.manifests(data_dir)
    assert reads == ["s-1", "s-2", "s-1", "s-2"]  # the last two are those of the other function
    write(data_dir, "s-1", a="changed")
    assert [dict(each.snapshot.labels) for each in manifests.all()] == [{"a": "changed"}, {}]
    assert reads[4:] == ["s-1"]
    second.write_text("damaged")
    assert [each.snapshot.id for each in manifests.all()] == ["s-1"]
    first.unlink()
    write(data_dir, "s-2", new="one")
    assert [dict(each.snapshot.labels) for each in manifests.all()] == [{"new": "one"}]
