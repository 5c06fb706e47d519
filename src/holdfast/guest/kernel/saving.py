"""The namespace of a context in a file, and back."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def save(namespace: "dict[str, Any]", path: str, leave: "set[str]") -> "tuple[list[str], dict[str, str]]":
    raise NotImplementedError


def load(namespace: "dict[str, Any]", path: str, leave: "set[str]") -> "tuple[list[str], dict[str, str]]":
    raise NotImplementedError
