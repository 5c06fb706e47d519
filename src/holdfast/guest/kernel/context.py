"""A context: one process, one namespace, in which one piece of code runs after the other.

The main thread runs the user's code and nothing else. A second one reads: answers to calls, requests, new connections,
and what subprocesses print. An interrupt is a signal, sent by the fork server.
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
from holdfast.guest.kernel.descriptors import CUT_OFF, closed, raised, wait_for
from holdfast.guest.kernel.execution import CodeRunner, Submitted, describe
from holdfast.guest.kernel.figures import take_figures
from holdfast.guest.kernel.huge_pages import Pages
from holdfast.guest.kernel.interrupts import Interrupts
from holdfast.guest.kernel.output import FLUSH_MILLISECONDS, Output, make_folder
from holdfast.guest.kernel.safe_builtins import Lent

try:
    from _queue import Empty, SimpleQueue
except ImportError:  # a Python without it
    from queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_VALUE = 1 << 20
"""Bytes of a value that travels with its result. A larger one goes by file."""
_IDLE = 0.02
"""Seconds without a request after which there is time for other things."""
_TEXT = 64_000
"""Characters of a value's `repr`."""
_ARGUMENTS = 64 << 20
_fork, _pidfd_open = os.fork, os.pidfd_open
_MARKS = dict.fromkeys(b"._-")
_BUILT_IN = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}


class HostError(RuntimeError):
    """What the host answered to a call."""


HostError.__module__ = "builtins"  # in a traceback, its own name is enough


def run(id: str, control: _socket.socket, config: "dict[str, Any]") -> None:
    """In a new process. Returns when there is no fork server any more."""
    if config.get("memory"):
        limit = int(config["memory"])
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    _read_nothing()
    Context(id, control).serve()


def _read_nothing() -> None:
    """Have nothing at descriptor 0."""
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
        self._lent = Lent()
        self._graveyard: list[Any] = []
        self._forking = False
        """A fork of ours is being made."""
        self._settle(id, control)
        os.register_at_fork(after_in_child=self._forked)

    def _settle(self, id: str, control: _socket.socket) -> None:
        """What belongs to one process alone: made anew after a fork."""
        self.id = id
        self.pid = posix.getpid()
        self.execution = self.last = ""
        self.calls: dict[str, Waiting] = {}
        self.submitted: tuple[Any] | None = None
        self.requests: SimpleQueue[tuple[dict[str, Any], bytes]] = SimpleQueue()
        self.children: dict[int, int] = {}
        self.point = 0
        """The process of a fork that waits for the case that this one dies."""
        self.restored = ""
        """The execution that this one was restored from: it began as a fork that was made before that."""
        self.interrupts = Interrupts()
        self.interrupts.install()
        self.line = ContextConnection(control, self._greet)
        self.output = Output(self.line, self.interrupts)
        self.output.install()
        _thread.start_new_thread(self._read, ())

    def _greet(self) -> "dict[str, Any]":
        return {
            "t": "ready",
            "context": self.id,
            "pid": self.pid,
            "python": sys.version.split()[0],
            "running": self.execution,
            "dropped": self.line.dropped,
            "restored": self.restored,
        }

    # --- the thread that reads ---

    def _read(self) -> None:
        watched = self.output.watched()
        while True:
            pending = FLUSH_MILLISECONDS if self.output.nudged else None
            others = {**watched, **dict.fromkeys(self.children.values(), self._see_off)}
            messages = self.line.read(others, pending)
            if messages is None:
                posix._exit(0)
            if pending is not None:
                self.output.nudged = False
                self.output.flush()
            for document, body in messages:
                self._hear(document, body)

    def _hear(self, document: "dict[str, Any]", body: bytes) -> None:
        kind = document["t"]
        if kind == "answer":
            waiting = self.calls.pop(document["call"], None)
            if waiting is not None:
                self.line.confirm("call " + document["call"])
                waiting.answered = (document, body)
                waiting.lock.release()
        elif kind == "confirm":
            self.line.confirm("done " + document["id"])
        else:
            self.requests.put((document, body))

    def _see_off(self) -> None:
        for pid, handle in list(self.children.items()):
            try:
                ended, status = posix.waitpid(pid, posix.WNOHANG)
            except ChildProcessError:
                ended, status = pid, 0
            if ended:
                del self.children[pid]
                posix.close(handle)
                code = posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else 128 + posix.WTERMSIG(status)
                self.line.tell_fork_server({"t": "ended", "pid": pid, "code": code})
        if not self.children:
            gc.unfreeze()  # nobody shares it any more

    # --- requests: the main thread ---

    def serve(self) -> None:
        while True:
            document, body = self._next()
            kind = document["t"]
            try:
                if kind == "execute":
                    if document.get("restore") and not self._keep_point(document["id"]):
                        continue  # woken: what came of that execution is why
                    self._execute(document, body)
                    self._drop_point()
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
                self.pages.gather(lambda: not self.requests.empty())
        return self.requests.get()

    def _answer(self, document: "dict[str, Any]", answer: "dict[str, Any]") -> None:
        if "id" in document:
            self.line.send({"t": "done", "id": document["id"], **answer}, until="done " + document["id"])

    def _do_define(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        """Functions of the host's that code here can call. Names that are not among them any more are taken away."""
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
        """What the last execution printed, where it was little: for a host that was away meanwhile."""
        return {"printed": self.output.printed() if document["execution"] == self.last else {}}

    def _do_set(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        """Environment and working directory."""
        with self._lent:
            _environment.update(document.get("env", {}))
        if document.get("cwd"):
            posix.chdir(document["cwd"])
        return {}

    def _do_notebook(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        """Have what notebooks have, shown by a function of the host's."""
        from holdfast.guest.kernel import notebook

        tool = document["tool"]
        with self._lent:
            notebook.set_up(self.namespace, lambda message: self.call(tool, (message,), {}))
        return {}

    def _do_save(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        from holdfast.guest.kernel import state_file

        around = state_file.Around(self.tools, self.runner.sources, self.count)
        names, unsaved = self._interruptible(state_file.save, self.namespace, document["path"], around, body)
        return {"names": names, "unsaved": unsaved}

    def _do_load(self, document: "dict[str, Any]", body: bytes) -> "dict[str, Any]":
        from holdfast.guest.kernel import state_file

        around = state_file.Around(self.tools, self.runner.sources, self.count)
        names, unsaved = self._interruptible(state_file.load, self.namespace, document["path"], around, body)
        self.count = around.count
        return {"names": names, "unsaved": unsaved}

    def _interruptible(self, work: "Callable[..., Any]", *given: "Any") -> "Any":
        """For what may run code of the user's that never ends."""
        try:
            self.interrupts.arm()
            try:
                return work(*given)
            finally:
                self.interrupts.disarm()
        except KeyboardInterrupt:
            raise InterruptedError("it was interrupted") from None

    # --- executions ---

    def _execute(self, document: "dict[str, Any]", body: bytes) -> None:
        id = document["id"]
        if not _is_name(id):
            raise ValueError("an execution needs a name")
        if not self.defined:  # what was to come before it
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
        with self._lent:
            _environment.update(environment)
        began = _monotonic()
        try:
            value = self._run(document["code"], body, result)
        finally:
            self.execution = ""
        if posix.getpid() != self.pid:
            self._leave(None)
        result["seconds"] = _monotonic() - began
        with self._lent:
            for name in environment:
                _environment.pop(name, None)
            self._stand_again()
            artifacts = self.output.end()
            artifacts += take_figures(folder)
            content = self._ship(value, result, artifacts, folder)
        result["artifacts"] = artifacts
        self.line.send(result, content, until="done " + id)

    def _home(self) -> str:
        with self._lent:
            return _environment.get("HOME", "/tmp")

    def _bind(self) -> None:
        """What every execution finds under its name, whatever the code before it did to that."""
        self.namespace["__builtins__"] = builtins
        self.namespace.update(self.tools)

    def _stand_again(self) -> None:
        """Code may have closed the descriptors of this process. Where it cannot be reached by them any more, it
        ends: a new one is better than one that nobody can talk to."""
        missing = closed([0, 1, 2, *self.line.descriptors(), *self.output.descriptors()])
        if any(each > 2 for each in missing):
            posix._exit(CUT_OFF)
        for each in missing:
            if each == 0:
                _read_nothing()
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
                self._leave(error)
            result["error"] = self._describe(error)
            value = None
        return value

    def _describe(self, error: BaseException, *, syntax: bool = False) -> "dict[str, Any]":
        with self._lent:
            return self.runner.describe(error, syntax=syntax)

    def _ship(self, value: "Any", result: "dict[str, Any]", artifacts: "list[dict[str, Any]]", folder: str) -> bytes:
        if self.submitted is not None:
            result["submitted"] = True
            value = self.submitted[0]
        if value is None:
            return b""
        try:
            content = value_codec.dump(value)
        except Exception as error:  # `repr` or a property of the user's may raise anything
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
            result["unshipped"] = "it is %d bytes as JSON, and could not be kept: %s" % (len(content), error)
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
            raise HostError("%s can be called only in the process of the interpreter, not in a fork of it" % name)
        if not self.execution:
            raise HostError("%s can be called only while an execution runs" % name)
        try:
            content = value_codec.dump({"args": list(args), "kwargs": kwargs})
        except value_codec.Unshippable as error:
            raise TypeError("%s was given something that cannot be sent: %s" % (name, error)) from None
        if len(content) > _ARGUMENTS:
            raise ValueError("%s was given %d bytes: at most %d can be sent" % (name, len(content), _ARGUMENTS))
        waiting = Waiting()
        id = posix.urandom(8).hex()
        with self.interrupts:
            self.output.flush()
            self.calls[id] = waiting
            told = {"t": "call", "id": id, "name": name, "e": self.execution}
            self.line.send(told, content, until="call " + id)
        try:
            waiting.lock.acquire()
        except BaseException:
            if self.calls.pop(id, None) is not None:
                self.line.confirm("call " + id)
                self.line.send({"t": "cancel", "id": id})
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
        """More contexts with all that this one has, in processes that share its memory: all that were asked for, or
        none."""
        gc.freeze()  # a collection would write to every object, and copy what is shared
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
            self.output.nudge()  # the thread that reads is to watch them
        self._answer(document, {"forked": made})

    def _fork_one(self, id: str) -> int:
        """0 in the child."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            with self.output.lock, self.line.sending:
                self._forking = True
                try:
                    pid = _fork()
                finally:
                    self._forking = False
            if pid == 0:
                self._part()
                self._reborn(id, theirs)
                return 0
            theirs.close()
            self.children[pid] = _watch_child(pid)
            self.line.tell_fork_server({"t": "born", "id": id, "pid": pid}, [ours.fileno()])
        finally:
            ours.close()
        return pid

    def _part(self) -> None:
        """In the child: what leads to the host and to other processes is the parent's."""
        self._graveyard.append((self.runner.forked(), self.output, self.line))
        self.line.let_go()
        self.output.let_go()
        for handle in self.children.values():
            posix.close(handle)

    def _reborn(self, id: str, control: _socket.socket) -> None:
        """In the child: the same namespace, and nothing else of the parent's."""
        self._settle(id, control)
        self.tools = {name: self._function(name, function.__doc__ or "") for name, function in self.tools.items()}
        self.namespace.update(self.tools)

    # --- restore points ---

    def _keep_point(self, execution: str) -> bool:
        """Fork a process that keeps the state before an execution. It waits until the fork server wakes it to take the
        place of this one. Returns False in that process, once it was woken."""
        gc.freeze()
        self.output.flush()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            with self.output.lock, self.line.sending:
                self._forking = True
                try:
                    pid = _fork()
                finally:
                    self._forking = False
            if pid == 0:
                ours.close()
                self._part()
                wait_for(theirs.fileno())
                self._reborn(self.id, theirs)
                self.restored = execution
                return False
            self.point = pid
            self.children[pid] = _watch_child(pid)
            self.line.tell_fork_server({"t": "point", "id": self.id, "pid": pid}, [ours.fileno()])
        finally:
            ours.close()
            theirs.close()
        return True

    def _drop_point(self) -> None:
        """The execution has ended, and this process with it has not: nobody needs the point any more."""
        if self.point:
            pid, self.point = self.point, 0
            try:
                posix.kill(pid, _signal.SIGKILL)
            except OSError:  # the user's code has seen it off
                pass
            self.output.nudge()  # the thread that reads is to watch it

    # --- forks of the user's code ---

    def _forked(self) -> None:
        """In a child that the user's code forked: what leads to the host is the parent's. Runs in any fork of ours,
        too, which has that to itself."""
        if not self._forking:
            self.line.let_go()
            self.output.print_by_descriptors()

    def _leave(self, error: "BaseException | None") -> None:
        """A child that the user's code forked has come to the end of that code: it ends as a program would, and
        answers to nobody."""
        code = 0
        try:
            if isinstance(error, SystemExit):
                code, told = exit_of(error)
            elif error is not None:
                code, told = 1, self._describe(error)["traceback"]
            else:
                told = ""
            self.output.printers[2].write(told)
            self.output.flush()
        finally:
            posix._exit(code)


def exit_of(error: SystemExit) -> "tuple[int, str]":
    """The exit code of a program that ends so, and what it prints."""
    if error.code is None:
        return 0, ""
    return (error.code & 0xFF, "") if isinstance(error.code, int) else (1, "%s\n" % (error.code,))


def _watch_child(pid: int) -> int:
    """A descriptor that can be read once the child has ended."""
    handle = _pidfd_open(pid)
    try:
        return raised(handle)
    finally:
        posix.close(handle)


class Waiting:
    """A call that is not answered yet."""

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.answered: tuple[dict[str, Any], bytes] | None = None


def _is_name(id: str) -> bool:
    """Letters, digits, and from the second character on `._-`. What it names is a folder, too."""
    return len(id) <= 128 and id.isascii() and id[:1].isalnum() and id.translate(_MARKS).isalnum()


def _error_of(document: "dict[str, Any]", body: bytes) -> Exception:
    """What the host raised, where it is an error of Python's own; so code can catch it as what it is."""
    message = document.get("message", "the host refused")
    made = _BUILT_IN.get(document.get("kind", ""))
    if made is None:
        return HostError(message)
    try:
        return made(*value_codec.load(body)) if body else made(message)
    except Exception:  # this Python makes it of something else
        return HostError(message)


def _text_of(value: "Any") -> str:
    text = repr(value)
    if len(text) <= _TEXT:
        return text
    half = _TEXT // 2
    return "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - _TEXT, text[-half:])
