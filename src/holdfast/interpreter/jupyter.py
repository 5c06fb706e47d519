"""A Jupyter kernel that runs notebooks in a box. `holdfast interpreter jupyter install` registers it with Jupyter.

Jupyter starts this module as a program, once for each notebook. ipykernel implements the protocol of Jupyter. Each
kernel has an interpreter of its own, and deletes its box at the end. Cells run only in the box, never in this process.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from IPython.core.inputtransformer2 import TransformerManager
from traitlets import Float, Unicode

from holdfast import __version__
from holdfast.api.box.process import Stream
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import InterpreterError
from holdfast.client import HoldfastError
from holdfast.guest.kernel.value_codec import MARK
from holdfast.interpreter.execution import Artifact, CodeError, Execution
from holdfast.interpreter.interpreter import Interpreter
from holdfast.interpreter.notebook_forms import safe_forms, terminal_text

_DISPLAY: Final = "_notebook_display"
_MODULE: Final = "_holdfast_notebook"
"""The name of the helper module while it is called."""
_GRACE_SECONDS: Final = 5.0
"""How long an interrupted cell may take to end before it is killed."""
_LONGEST_ID: Final = 200
_IMAGES: Final = ("image/png", "image/jpeg")
_SPECIAL: Final = re.compile(r"^\s*[!%?]|=\s*[!%]|\?\s*$", re.MULTILINE)
_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


class BoxKernel(Kernel):  # type: ignore[misc,unused-ignore]
    """One notebook, one interpreter, one box."""

    implementation = "holdfast"
    implementation_version = __version__
    banner = f"Holdfast {__version__}: Python in a box"
    language_info = {  # noqa: RUF012
        "name": "python",
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "nbconvert_exporter": "python",
        "version": ".".join(map(str, sys.version_info[:3])),
    }

    template = Unicode(help="The template of the box.").tag(config=True)
    model = Unicode(help="The model that llm_query asks.").tag(config=True)
    timeout = Float(float("inf"), help="The number of seconds that a cell may compute.").tag(config=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self._interpreter: Interpreter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the cells. Interrupts and the shutdown arrive on another one."""
        self._working: asyncio.Task[Any] | None = None
        self._is_set_up = False
        self._cells = TransformerManager()

    # --- cells ---

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Mapping[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: str | None = None,
    ) -> dict[str, Any]:
        publish = self._publisher(silent)
        try:
            done = await self._work(self._run(code, publish))
        except asyncio.CancelledError:
            done = Execution("", error=CodeError("KeyboardInterrupt", "", "KeyboardInterrupt"))
        except HoldfastError as error:
            hint = getattr(error, "hint", None)
            message = f"{error}\n{hint}" if hint else str(error)
            kind = type(error).__name__
            done = Execution("", error=CodeError(kind, str(error), f"{kind}: {message}"))
        if done.error is not None:
            content = _error_content(done.error)
            publish("error", content)
            return {"status": "error", "execution_count": self.execution_count, **content}
        return {
            "status": "ok",
            "execution_count": self.execution_count,
            "payload": [],
            "user_expressions": {},
        }

    async def _run(self, code: str, publish: Callable[[str, Mapping[str, Any]], None]) -> Execution:
        interpreter = await self._ready()
        # Incremental, because a character may arrive in two pieces.
        decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in ("stdout", "stderr")}

        def on_output(stream: Stream, data: bytes) -> None:
            if text := decoders[stream].decode(data):
                publish("stream", {"name": stream, "text": terminal_text(text)})

        interpreter.tools[_DISPLAY] = lambda message: publish(*_display_message(message))
        done = await interpreter.execute(self._translate(code), timeout=self.timeout, on_output=on_output)
        for artifact in done.artifacts:
            if artifact.media_type in _IMAGES:
                publish("display_data", {"data": await self._image(interpreter, artifact), "metadata": {}})
        if done.error is None and done.value_text is not None:
            shown = None if _is_plain(done.value) else await self._ask("show()")
            forms = shown or {"text/plain": done.value_text}
            result = {"execution_count": self.execution_count, "data": safe_forms(forms), "metadata": {}}
            publish("execute_result", result)
        if done.state_lost:
            self._is_set_up = False
        return done

    def _translate(self, code: str) -> str:
        """Replace `!commands` and magics by calls of `get_ipython()`. Python code is not changed."""
        if not _SPECIAL.search(code):
            return code
        try:
            return str(self._cells.transform_cell(code))
        except SyntaxError:
            return code  # the box reports the error

    @staticmethod
    async def _image(interpreter: Interpreter, artifact: Artifact) -> dict[str, str]:
        data = await interpreter.read_artifact(artifact)
        return {artifact.media_type: base64.b64encode(data).decode(), "text/plain": terminal_text(f"<{artifact.name}>")}

    def _publisher(self, silent: bool) -> Callable[[str, Mapping[str, Any]], None]:
        """A function that publishes output of the present cell, even if it is called later."""
        session, socket, parent = self.session, self.iopub_socket, self.get_parent()

        def publish(kind: str, content: Mapping[str, Any]) -> None:
            if session is not None and not silent:
                session.send(socket, kind, dict(content), parent=parent, ident=self._topic(kind))

        return publish

    async def _work(self, work: Any) -> Any:
        """Run as a task, so that it can be interrupted from another loop."""
        self._loop = asyncio.get_running_loop()
        self._working = asyncio.create_task(work)
        try:
            return await self._working
        finally:
            self._working = None

    def options(self) -> dict[str, Any]:
        """The options of its interpreter."""
        return {"template": self.template or None, "model": self.model or None, "timeout": self.timeout}

    async def _ready(self) -> Interpreter:
        if self._interpreter is None:
            # Jupyter restarts a kernel with the same file, so the box of a killed kernel is found and replaced.
            file = getattr(self.parent, "abs_connection_file", "")
            id = hashlib.sha256(str(file).encode()).hexdigest()[:14]
            interpreter = Interpreter(id=f"i-{id}", keep=False, **self.options())
            interpreter.tools[_DISPLAY] = lambda message: None
            self._interpreter = interpreter
            await interpreter.configure_workspace(force_new=True)
        await self._interpreter.start()
        if not self._is_set_up:
            await self._interpreter.serve_notebook(_DISPLAY)
            self._is_set_up = True
        return self._interpreter

    # --- completion and inspection ---

    async def do_complete(self, code: str, cursor_pos: int) -> dict[str, Any]:
        answer = await self._ask(f"complete({code[:cursor_pos].rpartition(chr(10))[2]!r})")
        begun = answer.get("begun", 0) if answer else 0
        matches = answer.get("matches", []) if answer else []
        return {
            "status": "ok",
            "matches": [each for each in matches if isinstance(each, str)],
            "cursor_start": cursor_pos - (begun if isinstance(begun, int) else 0),
            "cursor_end": cursor_pos,
            "metadata": {},
        }

    async def do_inspect(
        self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()
    ) -> dict[str, Any]:
        name = next((each.group() for each in _NAME.finditer(code) if each.start() <= cursor_pos <= each.end()), "")
        answer = await self._ask(f"explain({name!r})") if name else None
        text = answer.get("text") if answer else None
        data = {"text/plain": terminal_text(text)} if isinstance(text, str) else {}
        return {"status": "ok", "found": bool(data), "data": data, "metadata": {}}

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        status, indent = self._cells.check_complete(code)
        return {"status": status, **({"indent": " " * (indent or 0)} if status == "incomplete" else {})}

    async def _ask(self, call: str) -> dict[str, Any] | None:
        """Call the helper module in the box. Returns None if it does not answer. The notebook shows nothing of it."""
        interpreter = self._interpreter
        if interpreter is None or not self._is_set_up:
            return None
        printed = bytearray()
        # Only statements, because code may have replaced `exec` or `globals`. The name is deleted afterwards.
        code = f"import holdfast.guest.kernel.notebook as {_MODULE}\n{_MODULE}.{call}\ndel {_MODULE}"
        with contextlib.suppress(HoldfastError, ValueError):
            work = interpreter.execute(code, timeout=_GRACE_SECONDS, on_output=lambda _, data: printed.extend(data))
            done = await self._work(work)
            answer = json.loads(printed) if done.ok else None
            return answer if isinstance(answer, dict) else None
        return None

    # --- interrupts and shutdown ---

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Called on another event loop, while a cell runs."""
        loop = self._loop
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._interrupt(), loop)
        if self.session is not None:
            self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    async def _interrupt(self) -> None:
        """Raise KeyboardInterrupt in the cell, and kill it if it does not end."""
        working, interpreter = self._working, self._interpreter
        if working is None:
            return
        if interpreter is not None and interpreter.is_executing:
            with contextlib.suppress(InterpreterError, BoxError):
                await interpreter.interrupt(grace=_GRACE_SECONDS)
                return  # the cell ends or is killed, and reports its result
        working.cancel()

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        loop, interpreter = self._loop, self._interpreter
        self._interpreter = None
        if interpreter is not None and loop is not None:
            with contextlib.suppress(HoldfastError):
                work = asyncio.run_coroutine_threadsafe(interpreter.shutdown(), loop)
                await asyncio.wrap_future(work)
        return {"status": "ok", "restart": restart}


def _error_content(error: CodeError) -> dict[str, Any]:
    traceback = terminal_text(error.traceback).rstrip("\n").split("\n")
    return {"ename": terminal_text(error.kind), "evalue": terminal_text(error.message), "traceback": traceback}


def _is_plain(value: Any) -> bool:
    """Returns whether the `repr` of a value is its only form."""
    return isinstance(value, bool | int | float | str | list) or (isinstance(value, dict) and MARK not in value)


def _display_message(message: Any) -> tuple[str, dict[str, Any]]:
    """Turn a message of `display` in the box, which is not trusted, into a message of Jupyter."""
    request = message if isinstance(message, Mapping) else {}
    if request.get("clear"):
        return "clear_output", {"wait": bool(request.get("wait"))}
    content: dict[str, Any] = {"data": safe_forms(request.get("forms", {})), "metadata": {}}
    if isinstance(id := request.get("id"), str):
        content["transient"] = {"display_id": id[:_LONGEST_ID]}
    return ("update_display_data" if request.get("update") else "display_data"), content


def main() -> None:
    """Run one kernel. The arguments from Jupyter name its connection file."""
    IPKernelApp.launch_instance(kernel_class=BoxKernel)


if __name__ == "__main__":
    main()
