"""JSON without the json package: as that writes and reads it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.boxes import guest_archive
from holdfast.guest.kernel import json_codec

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
)


@given(_VALUES)
def test_that_it_is_as_the_package_writes_and_reads_it(value: Any) -> None:
    written = json_codec.dumps(value)
    assert written == json.dumps(value, separators=(",", ":"))
    assert json_codec.dumps(value, allow_nan=False) == written
    assert json_codec.loads(written) == json_codec.loads(f" {written}\n".encode()) == json.loads(written)


@given(st.text() | st.text('[]{}",:0123456789.eE-+truefalsnN \n\\'))
def test_that_it_refuses_what_the_package_refuses(text: str) -> None:
    try:
        wanted = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            json_codec.loads(text)
    else:
        assert repr(json_codec.loads(text)) == repr(wanted)


@pytest.mark.parametrize("text", ["", " ", "{", "[1,", "1 2", '"a', "{1:2}", "nul", "\ufeff1", '"\n"', b"\xff"])
def test_that_garbage_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_codec.loads(text)


def test_that_what_is_no_number_is_written_where_it_may_be() -> None:
    assert json_codec.dumps([math.inf, -math.inf]) == "[Infinity,-Infinity]"
    assert math.isnan(json_codec.loads(json_codec.dumps(math.nan)))
    with pytest.raises(ValueError, match=r"."):
        json_codec.dumps([math.inf], allow_nan=False)


def test_that_lone_surrogates_survive() -> None:
    assert json_codec.dumps("\ud800é") == '"\\ud800\\u00e9"'
    assert json_codec.loads(json_codec.dumps("\ud800é")) == "\ud800é"
    assert json_codec.loads('"\ud800"'.encode("utf-8", "surrogatepass")) == "\ud800"


def test_that_what_json_has_not_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        json_codec.dumps({"a": {1}})


def test_that_what_holds_itself_ends() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RecursionError):
        json_codec.dumps(value)
    with pytest.raises(RecursionError):
        json_codec.loads("[" * 100_000)


def test_that_it_works_without_the_c_code() -> None:
    code = """
import sys
sys.modules["_json"] = None
from holdfast.guest.kernel import json_codec
assert json_codec.dumps({"a": [1, 2.5, None, "\\ud800"]}) == '{"a":[1,2.5,null,"\\\\ud800"]}'
assert json_codec.loads(b' {"a": [1, NaN]} ')["a"][0] == 1
for text in ("", "{", "1 2"):
    try:
        json_codec.loads(text)
    except ValueError:
        continue
    raise AssertionError(text)
"""
    source = Path(json_codec.__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(source)})


def test_that_a_kernel_loads_little(tmp_path: Path) -> None:
    """Each of these takes as long as some of its own modules."""
    archive = tmp_path / "kernel.zip"
    archive.write_bytes(guest_archive.pack(["holdfast.guest.kernel.boot"]))
    module = "holdfast.guest.kernel.fork_server"
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); import {module}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    loaded = set(ran.stdout.split())
    assert "holdfast.guest.kernel.context" in loaded
    assert not loaded & {"collections", "enum", "functools", "json", "queue", "re", "socket", "threading", "traceback"}
