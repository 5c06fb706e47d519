"""What a box is, in the labels of its sandbox."""

from __future__ import annotations

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.daytona.records import BOX_LABEL, HOME_LABEL, BoxRecord


def test_a_record_comes_back_from_labels_without_its_secrets() -> None:
    spec = BoxSpec(provider="daytona", env={"TOKEN": "hush", "A": "1"}, labels={"a": "b"})
    record = BoxRecord("b-1", spec, {"a": "b", "holdfast.key": "k"}, 12, "s-1", "maker", ready=True, home="/root")
    labels = record.to_labels("home1")
    assert (labels[HOME_LABEL], labels[BOX_LABEL], labels["holdfast.key"]) == ("home1", "b-1", "k")
    assert all(len(value) <= 512 for value in labels.values())
    assert "hush" not in record.to_text()
    found = BoxRecord.from_labels(labels)
    assert found is not None
    assert found.spec.env == {}
    assert found.with_env({"TOKEN": "hush", "A": "1", "DAYTONA_SANDBOX_ID": "x"}).spec == spec


def test_many_long_labels_fit_into_what_daytona_takes() -> None:
    labels = {f"name{number}": f"{number}" * 250 for number in range(60)}
    record = BoxRecord("b-1", BoxSpec(provider="daytona"), labels, 12)
    packed = record.to_labels("home1")
    assert len(packed) <= 60
    found = BoxRecord.from_labels(packed)
    assert found is not None
    assert found.labels == labels


def test_labels_that_somebody_changed_hold_no_record() -> None:
    record = BoxRecord("b-1", BoxSpec(provider="daytona"), {}, 12)
    labels = record.to_labels("home1")
    for name in [name for name in labels if name.startswith("holdfast.record.")]:
        assert BoxRecord.from_labels({**labels, name: "bm9uc2Vuc2U="}) is None
        assert BoxRecord.from_labels({key: value for key, value in labels.items() if key != name}) is None
    assert BoxRecord.from_labels({}) is None
