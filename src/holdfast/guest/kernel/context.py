"""A context: a process with one namespace, which runs one piece of code after the other.

The main thread runs only user code. A second thread reads answers to calls, requests, new connections, and the output
of subprocesses. An interrupt is a signal, sent by the fork server.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import _thread
import builtins
import gc
import os
import posix
import resource
import sys
from os import environ as _environment
from time import monotonic as _monotonic

from holdfast.guest.kernel import value_codec
from holdfast.guest.kernel.connection import ContextConnection
from holdfast.guest.kernel.descriptors import CUT_OFF, closed, duplicate_high, wait_for
from holdfast.guest.kernel.execution import CodeRunner, Submitted, describe
from holdfast.guest.kernel.figures import take_figures
from holdfast.guest.kernel.huge_pages import Pages
from holdfast.guest.kernel.interrupts import Interrupts
from holdfast.guest.kernel.output import FLUSH_MILLISECONDS, Output, make_folder
from holdfast.guest.kernel.safe_builtins import OriginalBuiltins

try:
    from _queue import Empty, SimpleQueue
except ImportError:  # a Python without it
    from queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_VALUE = 1 << 20
"""The largest value in a result, in bytes. A larger one is written to a file."""
_IDLE = 0.02
"""Seconds without a request after which the context counts as idle."""
_TEXT = 64_000
"""The longest `repr` of a value."""
_ARGUMENTS = 64 << 20
_RECEIVED = 256
"""How many requests are remembered. A host waits for a few at a time."""
_fork, _pidfd_open = os.fork, os.pidfd_open
_MARKS = dict.fromkeys(b"._-")
_BUILT_IN = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}


class HostError(RuntimeError):
    """A call to the host failed."""


HostError.__module__ = "builtins"  # so that tracebacks show only its name


def run(id: str, control: _socket.socket, config: "dict[str, Any]") -> None:
    """Run a context in a new process. Returns when the fork server has ended."""
    if config.get("memory"):
        limit = int(config["memory"])
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    _connect_null()
    Context(id, control).serve()


def _connect_null() -> None:
    """Connect descriptor 0 to /dev/null."""
    null = posix.open("/dev/null", posix.O_RDONLY)
    if null != 0:
        posix.dup2(null, 0)
        posix.close(null)


class Context:
    def __init__(self, id: str, control: _socket.socket) -> None:
        module = type(sys)("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        sys.argv = [""]
        self.namespace = module.__dict__
        value_codec.OPENS_IMAGES = True
        self.runner = CodeRunner(self.namespace)
        self.tools: dict[str, Any] = {}
        self.defined = True
        self.count = 0
        self.pages = Pages()
        self._original_builtins = OriginalBuiltins()
        self._inherited: list[Any] = []
        self._forking = False
        """Whether our own code is forking now."""
        self._start_process(id, control)
        os.register_at_fork(after_in_child=self._on_fork)

    def _start_process(self, id: str, control: _socket.socket) -> None:
        """Create what belongs to one process. Called again after a fork."""
        self.id = id
        self.pid = posix.getpid()
        self.execution = self.last = ""
        self.calls: dict[str, PendingCall] = {}
        self.submitted: tuple[Any] | None = None
        self.requests: SimpleQueue[tuple[dict[str, Any], bytes]] = SimpleQueue()
        self.received: dict[str, None] = {}
        """The latest requests. A host that lost its connection cannot tell which of them arrived, and repeats them."""
        self.children: dict[int, int] = {}
        self.restore_point = 0
        """The pid of the restore point, or 0."""
        self.restored = ""
        """The execution before which this process was forked as a restore point, or empty."""
        self.interrupts = Interrupts()
        self.interrupts.install()
        self.connection = ContextConnection(control, self._greeting)
        self.output = Output(self.connection, self.interrupts)
        self.output.install()
        _thread.start_new_thread(self._read, ())

    def _greeting(self) -> "dict[str, Any]":
        return {
            "t": "ready",
            "context": self.id,
            "pid": self.pid,
            "python": sys.version.split()[0],
            "running": self.execution,
            "dropped": self.connection.dropped,
            "restored": self.restored,
        }

    # --- the thread that reads ---

    def _read(self) -> None:
        watched = self.output.watched()
        while True:
            pending = FLUSH_MILLISECONDS if self.output.is_pending else None
            others = {**watched, **dict.fromkeys(self.children.values(), self._reap_children)}
            messages = self.connection.read(others, pending)
            if messages is None:
                posix._exit(0)
            if pending is not None:
                self.output.is_pending = False
                self.output.flush()
            for document, body in messages:
                self._on_message(document, body)

    def _on_message(self, document: "dict[str, Any]", body: bytes) -> None:
        kind = document["t"]
        if kind == "answer":
            waiting = self.calls.pop(document["call"], None)
            if waiting is not None:
                self.connection.confirm("call " + document["call"])
                waiting.answered = (document, body)
                waiting.lock.release()
        elif kind == "confirm":
            self.connection.confirm("done " + document["id"])
        elif self._is_new(document.get("id")):
            self.requests.put((document, body))

    def _is_new(self, id: "Any") -> bool:
        if not isinstance(id, str):
            return True
        if id in self.received:
            return False
        self.received[id] = None
        if len(self.received) > _RECEIVED:
            del self.received[next(iter(self.received))]
        return True

    def _reap_children(self) -> None:
        for pid, handle in list(self.children.items()):
            try:
                ended, status = posix.waitpid(pid, posix.WNOHANG)
            except ChildProcessError:
                ended, status = pid, 0
            if ended:
                del self.children[pid]
                posix.close(handle)
                code = posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else 128 + posix.WTERMSIG(status)
                self.connection.tell_fork_server({"t": "ended", "pid": pid, "code": code})
        if not self.children:
            gc.unfreeze()  # the memory is no longer shared

    # --- requests: the main thread ---

    def serve(self) -> None:
        while True:
            document, body = self._next()
            kind = document["t"]
            try:
                if kind == "execute":
                    if document.get("restore") and not self._make_restore_point(document["id"]):
                        continue  # this is the restore point, which was just woken
                    self._execute(document, body)
                    self._drop_restore_point()
                elif kind == "fork":
                    self._fork(document)
                else:
                    self._answer(document, getattr(self, "_do_" + kind)(document, body))
            except Exception as error:
                self._answer(document, {"error": describe(error)})

    def _next(self) -> "tuple[dict[str, Any], bytes]":
        if self.pages.is_large():
            try:
                return self.requests.get(timeout=_IDLE)
            except Empty:
                self.pages.collapse(lambda: not self.requests.empty())
        return self.requests.get()

    def _answer(self, document: "dict[str, Any]", answer: "dict[str, Any]") -> None:
        if "id" in document:
            self.connection.send({"t": "done", "id": document["id"], **answer}, until="done " + document["id"])

    def _do_define(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        """Define the functions of the host that code can call, and remove those that are no longer among them."""
        self.defined = False
        wanted = {each["name"]: each for each in document["tools"]}
        for name, function in list(self.tools.items()):
            if name not in wanted and self.namespace.get(name) is function:
                del self.namespace[name]
        self.tools = {name: self._function(name, each.get("doc", "")) for name, each in wanted.items()}
        self.namespace.update(self.tools)
        self.defined = True
        return {}

    def _do_printed(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        """Return the output of the last execution, if it is short, for a host that was disconnected."""
        return {"printed": self.output.printed() if document["execution"] == self.last else {}}

    def _do_set(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        """Set environment variables and the working directory."""
        with self._original_builtins:
            _environment.update(document.get("env", {}))
        if document.get("cwd"):
            posix.chdir(document["cwd"])
        return {}

    def _do_notebook(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        """Define what notebooks expect. Values are shown by a function of the host."""
        from holdfast.guest.kernel import notebook

        tool = document["tool"]
        with self._original_builtins:
            notebook.set_up(self.namespace, lambda message: self.call(tool, (message,), {}))
        return {}

    def _do_save(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        from holdfast.guest.kernel import state_file

        metadata = state_file.ContextMetadata(self.tools, self.runner.sources, self.count)
        names, unsaved = self._interruptible(state_file.save, self.namespace, document["path"], metadata, body)
        return {"names": names, "unsaved": unsaved}

    def _do_load(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        from holdfast.guest.kernel import state_file

        metadata = state_file.ContextMetadata(self.tools, self.runner.sources, self.count)
        names, unsaved = self._interruptible(state_file.load, self.namespace, document["path"], metadata, body)
        self.count = metadata.count
        return {"names": names, "unsaved": unsaved}

    def _interruptible(self, work: "Callable[..., Any]", *given: "Any") -> "Any":
        """Run work that may call user code, which may never end."""
        try:
            self.interrupts.arm()
            try:
                return work(*given)
            finally:
                self.interrupts.disarm()
        except KeyboardInterrupt:
            raise InterruptedError("interrupted") from None

    # --- executions ---

    def _execute(self, document: "dict[str, Any]", body: bytes) -> None:
        id = document["id"]
        if not _is_name(id):
            raise ValueError("an execution needs a name")
        if not self.defined:  # the request before it failed
            raise RuntimeError("the functions of the host could not be defined")
        self.count += 1
        folder = "%s/.holdfast/artifacts/%s/%s" % (self._home(), self.id, id)
        self.submitted = None
        self.restored = ""
        self.execution = self.last = id
        self.output.begin(id, document.get("limit", 8000), folder)
        result: dict[str, Any] = {"t": "done", "id": id, "error": None, "text": None}
        value = None
        environment = document.get("env", {})
        with self._original_builtins:
            _environment.update(environment)
        began = _monotonic()
        try:
            value = self._run(document["code"], body, result)
        finally:
            self.execution = ""
        if posix.getpid() != self.pid:
            self._exit_fork(None)
        result["seconds"] = _monotonic() - began
        with self._original_builtins:
            for name in environment:
                _environment.pop(name, None)
            self._repair_descriptors()
            artifacts = self.output.end()
            artifacts += take_figures(folder)
            content = self._encode_value(value, result, artifacts, folder)
        result["artifacts"] = artifacts
        self.connection.send(result, content, until="done " + id)

    def _home(self) -> str:
        with self._original_builtins:
            return _environment.get("HOME", "/tmp")

    def _bind(self) -> None:
        """Restore names that every execution must find, even if earlier code replaced them."""
        self.namespace["__builtins__"] = builtins
        self.namespace.update(self.tools)

    def _repair_descriptors(self) -> None:
        """User code may have closed descriptors. If the connection to the host is lost, end: a new context is better
        than an unreachable one."""
        missing = closed([0, 1, 2, *self.connection.descriptors(), *self.output.descriptors()])
        if any(each > 2 for each in missing):
            posix._exit(CUT_OFF)
        for each in missing:
            if each == 0:
                _connect_null()
            else:
                self.output.connect(each)

    def _run(self, code: str, body: bytes, result: "dict[str, Any]") -> "Any":
        try:
            self._bind()
            if body:
                self.namespace.update(value_codec.load_parts(body))
            compiled = self.runner.compile(code, "<execution %d>" % self.count)
        except Exception as error:
            result["error"] = self._describe(error, syntax=isinstance(error, SyntaxError))
            return None
        value = None
        try:
            self.interrupts.arm()
            try:
                value = self.runner.run(compiled)
                if value is not None:
                    result["text"] = _text_of(value)
            finally:
                self.interrupts.disarm()
        except Submitted:
            pass
        except BaseException as error:
            if posix.getpid() != self.pid:
                self._exit_fork(error)
            result["error"] = self._describe(error)
            value = None
        return value

    def _describe(self, error: BaseException, *, syntax: bool = False) -> "dict[str, Any]":
        with self._original_builtins:
            return self.runner.describe(error, syntax=syntax)

    def _encode_value(
        self, value: "Any", result: "dict[str, Any]", artifacts: "list[dict[str, Any]]", folder: str
    ) -> bytes:
        if self.submitted is not None:
            result["submitted"] = True
            value = self.submitted[0]
        if value is None:
            return b""
        try:
            content = value_codec.dump(value)
        except Exception as error:  # user code in a property may raise anything
            result["unshipped"] = str(error)[:1000]
            return b""
        if len(content) <= _VALUE:
            return content
        path = folder + "/value.json"
        try:
            make_folder(folder)
            with open(path, "wb") as file:
                file.write(content)
        except OSError as error:
            result["unshipped"] = "it has %d bytes as JSON, which could not be written: %s" % (len(content), error)
            return b""
        artifacts.append({"name": "value", "media": "application/json", "path": path, "size": len(content)})
        return b""

    # --- calls to the host ---

    def _function(self, name: str, doc: str) -> "Callable[..., Any]":
        def function(*args: "Any", **kwargs: "Any") -> "Any":
            return self.call(name, args, kwargs)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = doc
        function.__module__ = "__main__"
        return function

    def call(self, name: str, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "Any":
        if posix.getpid() != self.pid:
            raise HostError("%s can only be called in the process of the interpreter, not in a fork" % name)
        if not self.execution:
            raise HostError("%s can only be called while an execution runs" % name)
        try:
            content = value_codec.dump({"args": list(args), "kwargs": kwargs})
        except value_codec.Unshippable as error:
            raise TypeError("%s got an argument that cannot be sent: %s" % (name, error)) from None
        if len(content) > _ARGUMENTS:
            raise ValueError("%s got %d bytes, and at most %d can be sent" % (name, len(content), _ARGUMENTS))
        waiting = PendingCall()
        id = posix.urandom(8).hex()
        with self.interrupts:
            self.output.flush()
            self.calls[id] = waiting
            request = {"t": "call", "id": id, "name": name, "e": self.execution}
            self.connection.send(request, content, until="call " + id)
        try:
            waiting.lock.acquire()
        except BaseException:
            if self.calls.pop(id, None) is not None:
                self.connection.confirm("call " + id)
                self.connection.send({"t": "cancel", "id": id})
            raise
        assert waiting.answered is not None
        document, body = waiting.answered
        if not document.get("ok"):
            raise _error_of(document, body)
        value = value_codec.load(body) if body else None
        if document.get("submitted"):
            self.submitted = (value,)
            raise Submitted
        return value

    # --- forks ---

    def _fork(self, document: "dict[str, Any]") -> None:
        """Create contexts that share the memory of this one: all that were requested, or none."""
        gc.freeze()  # a collection would write to every object, and so copy shared memory
        made: list[dict[str, Any]] = []
        self.output.flush()
        try:
            for id in document["ids"]:
                pid = self._fork_one(id)
                if pid == 0:
                    return
                made.append({"id": id, "pid": pid})
        except OSError:
            for each in made:
                posix.kill(each["pid"], _signal.SIGKILL)
            raise
        finally:
            self.output.wake_reader()  # so that the reading thread watches them
        self._answer(document, {"forked": made})

    def _fork_one(self, id: str) -> int:
        """Returns the pid, or 0 in the child."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            with self.output.lock, self.connection.sending:
                self._forking = True
                try:
                    pid = _fork()
                finally:
                    self._forking = False
            if pid == 0:
                self._close_inherited()
                self._become(id, theirs)
                return 0
            theirs.close()
            self.children[pid] = _watch_child(pid)
            self.connection.tell_fork_server({"t": "born", "id": id, "pid": pid}, [ours.fileno()])
        finally:
            ours.close()
        return pid

    def _close_inherited(self) -> None:
        """Close what belongs to the parent, in the child."""
        self._inherited.append((self.runner.forked(), self.output, self.connection))
        self.connection.close_inherited()
        self.output.close_inherited()
        for handle in self.children.values():
            posix.close(handle)

    def _become(self, id: str, control: _socket.socket) -> None:
        """Become a context of its own, with the namespace of the parent."""
        self._start_process(id, control)
        self.tools = {name: self._function(name, function.__doc__ or "") for name, function in self.tools.items()}
        self.namespace.update(self.tools)

    # --- restore points ---

    def _make_restore_point(self, execution: str) -> bool:
        """Fork a process that keeps the memory before an execution. It waits until the fork server wakes it to replace
        this process. Returns False in that process, after it was woken."""
        gc.freeze()
        self.output.flush()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            with self.output.lock, self.connection.sending:
                self._forking = True
                try:
                    pid = _fork()
                finally:
                    self._forking = False
            if pid == 0:
                ours.close()
                self._close_inherited()
                wait_for(theirs.fileno())
                self._become(self.id, theirs)
                self.restored = execution
                return False
            self.restore_point = pid
            self.children[pid] = _watch_child(pid)
            self.connection.tell_fork_server({"t": "point", "id": self.id, "pid": pid}, [ours.fileno()])
        finally:
            ours.close()
            theirs.close()
        return True

    def _drop_restore_point(self) -> None:
        """End the restore point, because the execution has ended normally."""
        if self.restore_point:
            pid, self.restore_point = self.restore_point, 0
            try:
                posix.kill(pid, _signal.SIGKILL)
            except OSError:  # user code has reaped it
                pass
            self.output.wake_reader()  # so that the reading thread reaps it

    # --- forks by user code ---

    def _on_fork(self) -> None:
        """Called in every child. In one that user code forked, close the connection, which belongs to the parent."""
        if not self._forking:
            self.connection.close_inherited()
            self.output.print_by_descriptors()

    def _exit_fork(self, error: "BaseException | None") -> None:
        """End a child that user code forked, at the end of that code, like a program. It sends no result."""
        code = 0
        try:
            if isinstance(error, SystemExit):
                code, message = exit_of(error)
            elif error is not None:
                code, message = 1, self._describe(error)["traceback"]
            else:
                message = ""
            self.output.printers[2].write(message)
            self.output.flush()
        finally:
            posix._exit(code)


def exit_of(error: SystemExit) -> "tuple[int, str]":
    """The exit code and the message of a program that raises `SystemExit`."""
    if error.code is None:
        return 0, ""
    return (error.code & 0xFF, "") if isinstance(error.code, int) else (1, "%s\n" % (error.code,))


def _watch_child(pid: int) -> int:
    """A descriptor that becomes readable when the child ends."""
    handle = _pidfd_open(pid)
    try:
        return duplicate_high(handle)
    finally:
        posix.close(handle)


class PendingCall:
    """A call without an answer."""

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.answered: tuple[dict[str, Any], bytes] | None = None


def _is_name(id: str) -> bool:
    """Returns whether an id has only letters, digits and, after the first character, `._-`. It names a folder, too."""
    return len(id) <= 128 and id.isascii() and id[:1].isalnum() and id.translate(_MARKS).isalnum()


def _error_of(document: "dict[str, Any]", body: bytes) -> Exception:
    """The error of the host. A built-in error has its own class, so that user code can catch it."""
    message = document.get("message", "the host refused the call")
    made = _BUILT_IN.get(document.get("kind", ""))
    if made is None:
        return HostError(message)
    try:
        return made(*value_codec.load(body)) if body else made(message)
    except Exception:  # this Python has other arguments for it
        return HostError(message)


def _text_of(value: "Any") -> str:
    text = repr(value)
    if len(text) <= _TEXT:
        return text
    half = _TEXT // 2
    return "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - _TEXT, text[-half:])
