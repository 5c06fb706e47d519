"""JSON by the C code of the `json` package, without the package: loading it would take as long as the rest of a kernel.
Host and box both use this module.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_SPACE = " \t\n\r"


class _Rules:
    """The settings of the scanner: those of `json.loads`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"-Infinity": -float("inf"), "Infinity": float("inf"), "NaN": float("nan")}.__getitem__


def _refuse(value: object) -> object:
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


try:
    import _json
except ImportError:  # a Python without the C module: slower
    import json

    _scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]

    def _encoder(allow_nan: bool) -> "Callable[[Any, int], Sequence[str]]":
        encoder = json.JSONEncoder(check_circular=False, allow_nan=allow_nan, separators=(",", ":"))
        return lambda value, _: [encoder.encode(value)]
else:
    _scan = _json.make_scanner(_Rules)  # type: ignore[arg-type]

    def _encoder(allow_nan: bool) -> "Callable[[Any, int], Sequence[str]]":
        escape = _json.encode_basestring_ascii
        # Without a check for cycles, without indent; keys are neither sorted nor skipped.
        made: Callable[[Any, int], Sequence[str]]
        made = _json.make_encoder(None, _refuse, escape, None, ":", ",", False, False, allow_nan)
        return made


_encode = _encoder(True)
_encode_finite = _encoder(False)


def dumps(value: "Any", *, allow_nan: bool = True) -> str:
    """Compact, in ASCII. Raises `TypeError` for values that JSON lacks, `RecursionError` for cycles."""
    return "".join((_encode if allow_nan else _encode_finite)(value, 0))


def loads(text: "str | bytes | bytearray") -> "Any":
    """Raises `ValueError` if the text is not JSON. Bytes are UTF-8."""
    if not isinstance(text, str):
        text = text.decode("utf-8", "surrogatepass")
    text = text.strip(_SPACE)
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("it is not JSON") from None
    if end != len(text):
        raise ValueError("there is more text after the end")
    return value
