"""Saves the namespace of a context to a file, and loads it.

A file is a header line, pickles, and an index of the pickles at the end. Names that share objects are in one pickle, so
that they share them again. Other names are in pickles of their own, so that one that fails to load affects no other.
"""

import importlib
import io
import json
import linecache
import os
import pickle
import struct
import sys
import types
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, BinaryIO

MAGIC = b"HOLDFAST-STATE 1\n"
_END = struct.Struct(">QI")
"""The length and the checksum of the index."""
_LONGEST_INDEX = 64 << 20
_PROTOCOL = 5
_PIECE = 1 << 20
_LARGE = 1 << 17
"""A write of this size is one value. A smaller write may hold many."""
_ANALYSED = 4 << 20
"""With more bytes of small values than this, about half a million values, sharing is not analysed: all names are in one
pickle."""
_WHY = 300
_SUBMODULES = 1000
_OURS = frozenset(("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "_"))
"""Names that every context defines itself."""
_ATOMS = (str, bytes, int, float, complex, tuple, frozenset, types.CodeType, types.BuiltinFunctionType)
"""Immutable types: names may refer to the same object without sharing state."""
_LIBRARY = "holdfast.guest.kernel.cloudpickle"


class NotAState(Exception):
    """The file is not a state, or is damaged. Nothing was loaded."""


class ContextMetadata:
    """What a context has in addition to its namespace."""

    def __init__(self, tools: "Mapping[str, Any]", sources: "dict[str, str]", count: int) -> None:
        self.tools = tools
        """Functions of the host, by name."""
        self.sources = sources
        """The source of executions, by the file name in their code."""
        self.count = count
        """The number of executions."""


def save(
    namespace: "dict[str, Any]", path: str, metadata: ContextMetadata, library: bytes
) -> "tuple[list[str], dict[str, str]]":
    """Save the namespace, atomically. Returns the saved names, and the others with reasons. `library` is the source of
    cloudpickle."""
    make = _pickler(_load_library(library), namespace, metadata.tools)
    modules, values, unsaved = _sort(namespace, metadata.tools)
    folder, name = os.path.split(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    temporary = "%s/.%s.%s" % (folder, name[:200], os.urandom(6).hex())
    try:
        with open(temporary, "xb") as file:
            written, files = _write(make, _group(make, values, unsaved), values, unsaved, file)
            index = {
                "python": list(sys.version_info[:3]),
                "count": metadata.count,
                "modules": modules,
                "submodules": _submodules(namespace),
                "sources": {each: metadata.sources[each] for each in files if each in metadata.sources},
                "values": written,
            }
            encoded = json.dumps(index).encode()
            file.write(encoded + _END.pack(len(encoded), zlib.crc32(encoded)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    return [*modules, *(name for each in written for name in each["names"])], unsaved


def load(
    namespace: "dict[str, Any]", path: str, metadata: ContextMetadata, library: bytes
) -> "tuple[list[str], dict[str, str]]":
    """Replace the namespace with a file. Returns the loaded names, and the others with reasons. Raises `NotAState`
    before anything is changed."""
    global _tools
    cloudpickle = _load_library(library)
    _tools = metadata.tools
    with open(path, "rb") as file:
        index = _read_index(file)
        for tracked in ("_DYNAMIC_CLASS_TRACKER_BY_ID", "_DYNAMIC_CLASS_TRACKER_BY_CLASS"):
            getattr(cloudpickle, tracked).clear()  # otherwise a present class would be merged with the one in the file
        for name in [each for each in namespace if each == "_" or (each not in _OURS and each not in metadata.tools)]:
            del namespace[name]
        metadata.count = max(metadata.count, index["count"])  # so that loaded code keeps its file names
        metadata.sources.update(index["sources"])
        for name, text in index["sources"].items():
            linecache.cache[name] = (len(text), None, [line + "\n" for line in text.splitlines()], name)
        unloaded: dict[str, str] = {}
        for name, module in index["modules"].items():
            try:
                namespace[name] = _import(module, index["submodules"].get(module, ()))
            except Exception as error:
                unloaded[name] = _why(error)
        _read(file, index, namespace, unloaded)
    names = [*index["modules"], *(name for each in index["values"] for name in each["names"])]
    return [name for name in names if name not in unloaded], unloaded


# --- saving ---


def _sort(
    namespace: "dict[str, Any]", tools: "Mapping[str, Any]"
) -> "tuple[dict[str, str], dict[str, Any], dict[str, str]]":
    """Return modules by name and values. Functions and classes, which other values need, come first."""
    modules: dict[str, str] = {}
    makers: dict[str, Any] = {}
    others: dict[str, Any] = {}
    unsaved: dict[str, str] = {}
    for name, value in list(namespace.items()):
        if name in _OURS or tools.get(name, _OURS) is value:
            continue
        if value is namespace:
            unsaved[name] = "it is the namespace"
        elif isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            modules[name] = value.__name__
        elif isinstance(value, (type, types.FunctionType)):
            makers[name] = value
        else:
            others[name] = value
    return modules, {**makers, **others}, unsaved


def _group(make: "Any", values: "dict[str, Any]", unsaved: "dict[str, str]") -> "list[list[str]]":
    """Group names that share objects. Adds names that cannot be saved to `unsaved`."""
    groups: dict[str, list[str]] = {}
    owners: dict[int, str] = {}
    picklers: list[Any] = []  # kept alive, so that ids of their objects are not reused
    small = 0
    for name, value in values.items():
        output = _Output(None)
        pickler = make(output)
        failed = _dump(pickler, value)
        if failed is not None:
            unsaved[name] = failed
            continue
        groups[name] = [name]
        small += output.small
        if small > _ANALYSED:
            picklers.clear()
            owners.clear()
            continue
        picklers.append(pickler)
        for id, (_, held) in pickler.memo.copy().items():
            if not isinstance(held, _ATOMS) and not pickler.is_named(held):
                _join(groups, owners.setdefault(id, name), name)
    if small > _ANALYSED:
        return [list(groups)]
    return [each for name, each in groups.items() if each[0] == name]


def _join(groups: "dict[str, list[str]]", one: str, other: str) -> None:
    together, taken = groups[one], groups[other]
    if together is not taken:
        together += taken
        for each in taken:
            groups[each] = together


def _write(
    make: "Any", groups: "list[list[str]]", values: "dict[str, Any]", unsaved: "dict[str, str]", file: "BinaryIO"
) -> "tuple[list[dict[str, Any]], set[str]]":
    """Write the pickles. Returns their index, and the file names in their code."""
    index: list[dict[str, Any]] = []
    files: set[str] = set()
    file.write(MAGIC)
    for names in groups:
        at = file.tell()
        output = _Output(file)
        pickler = make(output)
        failed = _dump(pickler, [values[name] for name in names])
        if output.failed is not None:
            raise output.failed
        if failed is not None:  # it changed since it was grouped
            unsaved.update(dict.fromkeys(names, failed))
            file.seek(at)
            file.truncate()
            continue
        files |= pickler.files
        index.append({"names": names, "at": at, "size": output.size, "crc": output.crc, "code": bool(pickler.files)})
    return index, files


def _dump(pickler: "Any", value: "Any") -> "str | None":
    """Returns the reason of a failure. Values run user code when they are pickled, which may raise anything."""
    try:
        pickler.dump(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _why(error)
    return None


class _Output:
    """The output of a pickler. Without a file, it only counts bytes."""

    def __init__(self, file: "BinaryIO | None") -> None:
        self._file = file
        self.size = 0
        self.small = 0
        self.crc = 0
        self.failed: OSError | None = None
        """An error of the disk, not of the value."""

    def write(self, data: "Any") -> int:
        size = len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        if self._file is not None:
            self.crc = zlib.crc32(data, self.crc)
            try:
                self._file.write(data)
            except OSError as error:
                self.failed = error
                raise
        if size < _LARGE:
            self.small += size
        self.size += size
        return size


def _pickler(cloudpickle: "Any", namespace: "dict[str, Any]", tools: "Mapping[str, Any]") -> "Any":
    tool_code = {function.__code__ for function in tools.values()}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, output: _Output) -> None:
            super().__init__(output, _PROTOCOL)
            self.files: set[str] = set()

        def reducer_override(self, value: "Any") -> "Any":
            kind = type(value)
            if kind is types.CodeType:
                self.files.add(value.co_filename)
            elif kind is io.TextIOWrapper:  # otherwise its whole content would be read
                raise TypeError("cannot pickle an open file: %r" % value.name)
            return super().reducer_override(value)

        def _dynamic_function_reduce(self, function: "Any") -> "Any":
            """Save a function of the namespace without the globals that it uses."""
            if function.__code__ in tool_code:
                return find_tool, (function.__name__,)
            made = super()._dynamic_function_reduce(function)
            if function.__globals__ is not namespace:
                return made
            code, _, _, _, closure = made[1]
            state, slots = made[2]
            return (make_function, (code, closure), (state, {**slots, "__globals__": {}}), *made[3:])

        def is_named(self, value: "Any") -> bool:
            """Returns whether it is pickled by reference."""
            if isinstance(value, (type, types.FunctionType)):
                return value.__module__ != "__main__" and bool(cloudpickle._should_pickle_by_reference(value))
            return isinstance(value, types.ModuleType)

    return Pickler


def _submodules(namespace: "dict[str, Any]") -> "dict[str, list[str]]":
    """`import a.b` binds only `a`, but `a.b` must be imported again, too."""
    used = {value.__name__ for value in list(namespace.values()) if isinstance(value, types.ModuleType)}
    found: dict[str, list[str]] = {}
    for name in list(sys.modules):
        top = name.partition(".")[0]
        if top != name and top in used and len(found.setdefault(top, [])) < _SUBMODULES:
            found[top].append(name)
    return found


# --- loading ---


def _read_index(file: "BinaryIO") -> "dict[str, Any]":
    """Read the index and check the whole file before anything is loaded."""
    try:
        if file.read(len(MAGIC)) != MAGIC:
            raise NotAState("this file is not a saved state")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _END.size, 0))
        length, checksum = _END.unpack(file.read(_END.size))
        end = size - _END.size - length
        if length > _LONGEST_INDEX or end < len(MAGIC):
            raise NotAState("the state is incomplete")
        file.seek(end)
        encoded = file.read(length)
        if zlib.crc32(encoded) != checksum:
            raise NotAState("the state is damaged")
        index: dict[str, Any] = json.loads(encoded)
        if not _is_valid_index(index, end):
            raise NotAState("the state is damaged: its index is invalid")
        for each in index["values"]:
            if _checksum(file, each["at"], each["size"]) != each["crc"]:
                raise NotAState("the state is damaged: %s" % ", ".join(each["names"][:5]))
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise NotAState("the state is damaged: %s" % _why(error)) from None
    return index


def _is_valid_index(index: "Any", end: int) -> bool:
    at = len(MAGIC)
    texts = [*index["sources"].items(), *index["modules"].items(), *index["submodules"].values()]
    for each in index["values"]:
        if each["at"] != at or type(each["size"]) is not int or each["size"] < 0:
            return False
        at += each["size"]
        texts.append(each["names"])
    named = all(isinstance(each, (list, tuple)) and all(type(text) is str for text in each) for each in texts)
    version = type(index["python"]) is list and len(index["python"]) == 3
    return at == end and named and version and type(index["count"]) is int


def _checksum(file: "BinaryIO", at: int, size: int) -> int:
    file.seek(at)
    found = 0
    while size:
        data = file.read(min(size, _PIECE))
        if not data:
            raise NotAState("the state is incomplete")
        found = zlib.crc32(data, found)
        size -= len(data)
    return found


def _read(file: "BinaryIO", index: "dict[str, Any]", namespace: "dict[str, Any]", unloaded: "dict[str, str]") -> None:
    foreign = index["python"][:2] != list(sys.version_info[:2])
    for each in index["values"]:
        names = each["names"]
        file.seek(each["at"])
        try:
            if foreign and each["code"]:
                versions = (*index["python"][:2], *sys.version_info[:2])
                raise RuntimeError("it contains code of Python %s.%s, and this is Python %d.%d" % versions)
            values = pickle.load(file)
            if type(values) is not list or len(values) != len(names):
                raise RuntimeError("its content does not match the index")
            namespace.update(zip(names, values))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            why = _why(error)
            for name in names:
                others = ", ".join(other for other in names if other != name)[:_WHY]
                unloaded[name] = "%s (it shares objects with %s)" % (why, others) if others else why


def _import(module: str, submodules: "list[str]") -> "Any":
    found = importlib.import_module(module)
    for each in submodules:
        if each not in sys.modules:
            try:
                importlib.import_module(each)
            except Exception:
                pass  # code that needs it will raise
    return found


# --- names that pickles refer to: part of the file format ---


def make_function(code: types.CodeType, closure: "Any") -> types.FunctionType:
    """Create a function in the present namespace."""
    return types.FunctionType(code, sys.modules["__main__"].__dict__, None, None, closure)


def find_tool(name: str) -> "Any":
    found = _tools.get(name)
    if found is None:
        raise LookupError("the host has no %s here" % name)
    return found


_tools: "Mapping[str, Any]" = {}


def _load_library(source: bytes) -> "Any":
    """Load cloudpickle from its source, because it is not installed in the box."""
    module = sys.modules.get(_LIBRARY)
    if module is None:
        module = types.ModuleType(_LIBRARY)
        code = compile(source, "holdfast/guest/kernel/cloudpickle.py", "exec", dont_inherit=True)
        sys.modules[_LIBRARY] = module  # it looks up itself
        try:
            exec(code, module.__dict__)  # noqa: S102 - our own
        except BaseException:
            del sys.modules[_LIBRARY]
            raise
    return module


def _why(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    reason = "%s: %s" % (type(error).__name__, text) if text else type(error).__name__
    return reason if len(reason) <= _WHY else reason[:_WHY] + "..."
