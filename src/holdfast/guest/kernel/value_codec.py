"""Encodes values as JSON, and decodes them, on the host and in the box.

Values of JSON are not changed. Other values are documents with a type in `$`: bytes, tuples, sets, dates, arrays of
numpy, tables of pandas, images. A side without the library gets the document itself. Other values cannot be sent; a
value is never truncated.
"""

import binascii
import struct

from holdfast.guest.kernel import json_codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

DEPTH = 64
LARGE = 1 << 16
"""A text or array of this many bytes is sent beside the document, unencoded."""
OPENS_IMAGES = False
"""Whether this process decodes images. Only contexts do: the host must not open images from a box."""
MARK = "$"


class Form(dict):  # type: ignore[type-arg] # of anything, and of Python 3.9
    """The document of a value that this side cannot decode. Sent back, it becomes the value again."""


class Unshippable(Exception):
    """The value cannot be sent."""


def dump(value: "Any") -> bytes:
    """Raises `Unshippable`."""
    try:
        return json_codec.dumps(to_form(value), allow_nan=False).encode()
    except (RecursionError, ValueError) as error:
        raise Unshippable(str(error)) from None


def load(data: "bytes | bytearray") -> "Any":
    return from_form(json_codec.loads(data))


_HEAD = struct.Struct(">Q")


class Parts:
    """The data beside a document, which refers to it by offset and size."""

    def __init__(self, held: "memoryview | None" = None) -> None:
        self.pieces: list[bytes] = []
        self._size = 0
        self._held = held

    def put(self, data: bytes) -> "dict[str, int]":
        found = {"at": self._size, "size": len(data)}
        self.pieces.append(data)
        self._size += len(data)
        return found

    def get(self, form: "Any") -> memoryview:
        assert self._held is not None
        at, size = form["at"], form["size"]
        if not 0 <= at <= at + size <= len(self._held):
            raise ValueError("a part that does not exist")
        return self._held[at : at + size]


def dump_parts(value: "Any") -> "list[bytes]":
    """Encode a value for a context, in pieces: the length of the document, the document, and large data unencoded,
    which is ten times faster than JSON. Raises `Unshippable`."""
    parts = Parts()
    try:
        document = json_codec.dumps(to_form(value, 0, parts), allow_nan=False).encode()
    except (RecursionError, ValueError) as error:
        raise Unshippable(str(error)) from None
    return [_HEAD.pack(len(document)), document, *parts.pieces]


def load_parts(data: "bytes | bytearray") -> "Any":
    """Decode what `dump_parts` returned. Only for data from the host, because a document may use a part many times."""
    with memoryview(data) as held:
        (size,) = _HEAD.unpack_from(held)
        with held[_HEAD.size : _HEAD.size + size] as document, held[_HEAD.size + size :] as rest:
            return from_form(json_codec.loads(bytes(document)), Parts(rest))


def _text_of(data: "bytes | bytearray | memoryview") -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _data_of(data: "bytes | bytearray | memoryview", parts: "Parts | None") -> "dict[str, Any]":
    if parts is None or len(data) < LARGE:
        return {"base64": _text_of(data)}
    return parts.put(bytes(data))


def _bytes_of(form: "Any", parts: "Parts | None") -> "bytes | memoryview":
    return binascii.a2b_base64(form["base64"]) if parts is None or "at" not in form else parts.get(form)


def to_form(value: "Any", depth: int = 0, parts: "Parts | None" = None) -> "Any":
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is str:
        if parts is None or len(value) < LARGE:
            return value
        return {MARK: "text", **parts.put(value.encode("utf-8", "surrogatepass"))}
    if kind is int:
        return value
    if kind is float:
        return value if value - value == 0 else {MARK: "float", "text": repr(value)}
    if kind is Form:
        return dict(value)
    if depth >= DEPTH:
        raise Unshippable("it is nested more than %d deep, or contains itself" % DEPTH)
    if kind is list:
        return [to_form(each, depth + 1, parts) for each in value]
    if kind is dict:
        if MARK not in value and all(type(key) is str for key in value):
            return {key: to_form(each, depth + 1, parts) for key, each in value.items()}
        items = [[to_form(key, depth + 1, parts), to_form(each, depth + 1, parts)] for key, each in value.items()]
        return {MARK: "dict", "items": items}
    return _others(value, kind, depth, parts)


def _others(value: "Any", kind: type, depth: int, parts: "Parts | None") -> "Any":
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {MARK: "bytes", **_data_of(value, parts)}
    if isinstance(value, (tuple, set, frozenset)):
        name = "tuple" if isinstance(value, tuple) else "set"
        return {MARK: name, "items": [to_form(each, depth + 1, parts) for each in value]}
    if kind.__name__ in ("NaTType", "NAType"):  # missing values of pandas
        return None
    made = _dump_foreign(value, kind, depth, parts)
    if made is not None:
        return made
    # Subclasses of JSON types, such as members of an enum, are sent as their base type.
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return to_form(plain(value), depth, parts)
    if isinstance(value, dict):
        return to_form(dict(value), depth, parts)
    if isinstance(value, list):
        return to_form(list(value), depth, parts)
    if hasattr(kind, "model_fields") and hasattr(kind, "model_dump"):  # a pydantic model
        try:
            document = value.model_dump()
        except Exception as error:  # raised by the code of the model
            raise Unshippable("a %s cannot be converted to a document: %s" % (kind.__name__, error)) from None
        return to_form(document, depth + 1, parts)
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is not None:
        return {name: to_form(getattr(value, name), depth + 1, parts) for name in fields}
    raise Unshippable("a %s cannot be sent" % kind.__name__)


def _dump_foreign(value: "Any", kind: type, depth: int, parts: "Parts | None") -> "Any":
    """Encode values of libraries, by the module of their class, without an import."""
    home = kind.__module__.partition(".")[0]
    if home == "datetime":
        if kind.__name__ == "timedelta":
            return {MARK: "timedelta", "seconds": value.total_seconds()}
        return {MARK: kind.__name__, "iso": value.isoformat()}
    if home == "decimal" and kind.__name__ == "Decimal":
        return {MARK: "decimal", "text": str(value)}
    if home == "pathlib":
        return str(value)
    if home == "uuid" and kind.__name__ == "UUID":
        return str(value)
    if home == "numpy":
        return _dump_numpy(value, kind, depth, parts)
    if home == "pandas":
        return _dump_pandas(value, kind, depth, parts)
    if home == "PIL" and hasattr(value, "save"):
        import io

        held = io.BytesIO()
        value.save(held, "PNG")
        return {MARK: "image", "media": "image/png", "base64": _text_of(held.getvalue())}
    return None


def _dump_numpy(value: "Any", kind: type, depth: int, parts: "Parts | None") -> "Any":
    if kind.__name__ == "ndarray":
        if value.dtype.kind in "biufcSUmM" and value.dtype.names is None:
            data = _data_of(value.tobytes(), parts)
            return {MARK: "array", "dtype": value.dtype.str, "shape": list(value.shape), **data}
        return {
            MARK: "array",
            "dtype": "object",
            "shape": list(value.shape),
            "items": to_form(value.tolist(), depth + 1, parts),
        }
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        plain = value.item()
        return to_form(plain, depth, parts) if type(plain) is not kind else to_form(str(plain), depth, parts)
    return None


def _dump_pandas(value: "Any", kind: type, depth: int, parts: "Parts | None") -> "Any":
    if kind.__name__ == "DataFrame":
        columns = [to_form(each, depth + 1, parts) for each in value.columns.tolist()]
        return {
            MARK: "table",
            "columns": columns,
            "index": _cells(value.index.tolist(), depth, parts),
            "data": [_cells(value.iloc[:, n].tolist(), depth, parts) for n in range(len(columns))],
            "dtypes": [str(each) for each in value.dtypes],
        }
    if kind.__name__ == "Series":
        name = to_form(value.name, depth + 1, parts)
        return {MARK: "series", "name": name, "index": _cells(value.index.tolist(), depth, parts),
                "data": _cells(value.tolist(), depth, parts), "dtype": str(value.dtype)}  # fmt: skip
    if kind.__name__ in ("Index", "RangeIndex", "DatetimeIndex", "MultiIndex"):
        return _cells(value.tolist(), depth, parts)
    if kind.__name__ in ("Timestamp", "Timedelta", "Period", "Interval"):
        return {MARK: "datetime", "iso": value.isoformat()} if kind.__name__ == "Timestamp" else str(value)
    return None


def _cells(values: "list[Any]", depth: int, parts: "Parts | None") -> "list[Any]":
    return [to_form(each, depth + 2, parts) for each in values]


def from_form(form: "Any", parts: "Parts | None" = None) -> "Any":
    kind = type(form)
    if kind is list:
        return [from_form(each, parts) for each in form]
    if kind is not dict:
        return form
    name = form.get(MARK)
    if name is None:
        return {key: from_form(each, parts) for key, each in form.items()}
    make = _MAKERS.get(name) if type(name) is str else None
    if make is None:
        return form
    try:
        return make(form, parts)
    except ImportError:  # this side lacks the library
        if "at" not in form or parts is None:
            return Form(form)
        kept = {key: each for key, each in form.items() if key not in ("at", "size")}
        return Form({**kept, "base64": _text_of(parts.get(form))})


def _make_array(form: "Any", parts: "Parts | None") -> "Any":
    import numpy  # type: ignore[import-not-found,unused-ignore]

    if "items" in form:
        return numpy.array(from_form(form["items"], parts), dtype=object).reshape(form["shape"])
    # A copy, because the result of `frombuffer` is read-only.
    data = numpy.frombuffer(_bytes_of(form, parts), dtype=numpy.dtype(form["dtype"]))
    return data.reshape(form["shape"]).copy()


def _make_table(form: "Any", parts: "Parts | None") -> "Any":
    import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]

    index = from_form(form["index"], parts)
    columns = from_form(form["columns"], parts)
    series = [pandas.Series(from_form(each, parts), index=index, dtype=_dtype(kind))
              for each, kind in zip(form["data"], form["dtypes"])]  # fmt: skip
    table = pandas.concat(series, axis=1) if series else pandas.DataFrame(index=index)
    table.columns = columns
    return table


def _make_series(form: "Any", parts: "Parts | None") -> "Any":
    import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]

    index = from_form(form["index"], parts)
    return pandas.Series(
        from_form(form["data"], parts), index=index, dtype=_dtype(form["dtype"]), name=from_form(form["name"], parts)
    )


def _dtype(name: str) -> "str | None":
    """The dtype of a column, if it can be given by name. None lets pandas infer it."""
    return (
        name if name.startswith(("int", "uint", "float", "bool", "object", "datetime64", "category", "str")) else None
    )


def _make_image(form: "Any", parts: "Parts | None") -> "Any":
    if not OPENS_IMAGES:
        return Form(form)
    import io

    from PIL import Image  # type: ignore[import-not-found,unused-ignore]

    return Image.open(io.BytesIO(binascii.a2b_base64(form["base64"])))


def _make_time(name: str) -> "Callable[[Any, Any], Any]":
    def make(form: "Any", parts: "Parts | None") -> "Any":
        import datetime

        return getattr(datetime, name).fromisoformat(form["iso"])

    return make


def _make_timedelta(form: "Any", parts: "Parts | None") -> "Any":
    import datetime

    return datetime.timedelta(seconds=form["seconds"])


def _make_decimal(form: "Any", parts: "Parts | None") -> "Any":
    import decimal

    return decimal.Decimal(form["text"])


_MAKERS: "dict[str, Callable[[Any, Parts | None], Any]]" = {
    "float": lambda form, parts: float(form["text"]),
    "bytes": lambda form, parts: bytes(_bytes_of(form, parts)),
    "text": lambda form, parts: str(_bytes_of(form, parts), "utf-8", "surrogatepass"),
    "tuple": lambda form, parts: tuple(from_form(each, parts) for each in form["items"]),
    "set": lambda form, parts: {from_form(each, parts) for each in form["items"]},
    "dict": lambda form, parts: {from_form(key, parts): from_form(each, parts) for key, each in form["items"]},
    "datetime": _make_time("datetime"),
    "date": _make_time("date"),
    "time": _make_time("time"),
    "timedelta": _make_timedelta,
    "decimal": _make_decimal,
    "array": _make_array,
    "table": _make_table,
    "series": _make_series,
    "image": _make_image,
}
