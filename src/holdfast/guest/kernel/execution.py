"""Runs user code: compiles it with its last expression apart, and describes errors by lines of the code."""

import _ast
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceback import TracebackException
    from types import CodeType
    from typing import Any

    Compiled = tuple[CodeType | None, CodeType | None]

_AWAIT = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_COROUTINE = 0x80
_LONGEST = 32_000
"""The longest traceback, in characters."""
_OURS = "holdfast/guest/"
_SOURCES = 10_000
"""The number of sources kept for tracebacks."""


class Submitted(BaseException):
    """Ends the execution that called SUBMIT. Not an `Exception`, so user code does not catch it by accident."""


class CodeRunner:
    """Runs code in one namespace."""

    def __init__(self, namespace: "dict[str, Any]") -> None:
        self.namespace = namespace
        self.sources: dict[str, str] = {}
        self._loop: Any = None

    def compile(self, code: str, name: str) -> "Compiled":
        """Raises `SyntaxError` and other errors of compilation, before any of the code runs."""
        tree = compile(code, name, "exec", _AWAIT | _ast.PyCF_ONLY_AST, dont_inherit=True)
        self.sources[name] = code
        while len(self.sources) > _SOURCES:
            del self.sources[next(iter(self.sources))]
        last = None
        if tree.body and isinstance(tree.body[-1], _ast.Expr) and not code.rstrip().endswith(";"):
            last = _ast.Expression(tree.body.pop().value)
        body = compile(tree, name, "exec", _AWAIT, dont_inherit=True) if tree.body else None
        return body, None if last is None else compile(last, name, "eval", _AWAIT, dont_inherit=True)

    def run(self, compiled: "Compiled") -> "Any":
        """Return the value of the last expression, or None. Raises what the code raises."""
        body, final = compiled
        if body is not None:
            self._run(body)
        if final is None:
            return None
        value = self._run(final)
        if value is not None:
            self.namespace["_"] = value
        return value

    def _run(self, code: "CodeType") -> "Any":
        value = eval(code, self.namespace)  # running user code is the purpose of a kernel
        return self._wait(value) if code.co_flags & _COROUTINE else value

    def _wait(self, coroutine: "Any") -> "Any":
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            try:
                self._loop.run_until_complete(task)
            except (asyncio.CancelledError, Exception):
                pass
            raise

    def describe(self, error: BaseException, *, syntax: bool = False) -> "dict[str, Any]":
        """Describe an error for a model, with lines of the code."""
        try:
            import linecache

            for name, code in self.sources.items():
                if name not in linecache.cache:
                    # Early releases of 3.11 misplace their markers under a line without a newline.
                    lines = [line + "\n" for line in code.splitlines()]
                    linecache.cache[name] = (len(code), None, lines, name)
        except Exception:  # user code may have replaced it
            pass
        return describe(error, syntax=syntax)

    def forked(self) -> "Any":
        """Detach the event loop of the parent, in a forked child. It is returned unclosed, because closing it would
        affect the parent."""
        loop, self._loop = self._loop, None
        if loop is not None:
            import asyncio

            asyncio.set_event_loop(None)
        return loop


def describe(error: BaseException, *, syntax: bool = False) -> "dict[str, Any]":
    """Describe an error for a model, without our own frames. `syntax`: the code did not compile."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:
        message = "<str() of this error failed>"
    try:
        import traceback  # loading it takes a third of a start

        trace = (
            traceback.TracebackException.from_exception(error, compact=True)
            if sys.version_info >= (3, 10)
            else (traceback.TracebackException.from_exception(error))
        )
        _trim(trace, set())
        if syntax:
            trace.stack.clear()
        text = "".join(trace.format())
    except Exception:
        text = "%s: %s" % (name, message)
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - _LONGEST, text[-half:])
    return {"kind": name, "message": message[:_LONGEST], "traceback": text, "syntax": syntax}


def _trim(trace: "TracebackException", seen: "set[int]") -> None:
    if id(trace) in seen:
        return
    seen.add(id(trace))
    kept = [frame for frame in trace.stack if _OURS not in frame.filename]
    trace.stack[:] = kept
    for other in (trace.__cause__, trace.__context__):
        if other is not None:
            _trim(other, seen)
