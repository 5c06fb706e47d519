"""A Jupyter kernel whose notebooks run in a box. `holdfast interpreter jupyter install` makes it known to Jupyter.

Jupyter starts this module as a program, one for each notebook. It speaks Jupyter's protocol by ipykernel, and has an
interpreter of its own, whose box it deletes in the end. Cells run in the box alone, never in this process.
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
from holdfast.interpreter.interpreter import Interpreter
from holdfast.interpreter.notebook_forms import safe_forms, terminal_text
from holdfast.interpreter.results import Artifact, CodeError, Execution

_DISPLAY: Final = "_notebook_display"
_MODULE: Final = "_holdfast_notebook"
"""Its name while something is asked of it."""
_GRACE_SECONDS: Final = 5.0
"""How long an interrupted cell may take to end, before it is killed."""
_LONGEST_ID: Final = 200
_PICTURES: Final = ("image/png", "image/jpeg")
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

    template = Unicode(help="What the box is made of.").tag(config=True)
    model = Unicode(help="Which model llm_query asks.").tag(config=True)
    timeout = Float(float("inf"), help="Seconds that a cell may compute.").tag(config=True)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._interpreter: Interpreter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of the cells. Interrupts and the end come on another."""
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
            said = f"{error}\n{hint}" if hint else str(error)
            done = Execution("", error=CodeError(type(error).__name__, str(error), f"{type(error).__name__}: {said}"))
        if done.error is not None:
            told = _as_error(done.error)
            publish("error", told)
            return {"status": "error", "execution_count": self.execution_count, **told}
        return {
            "status": "ok",
            "execution_count": self.execution_count,
            "payload": [],
            "user_expressions": {},
        }

    async def _run(self, code: str, publish: Callable[[str, Mapping[str, Any]], None]) -> Execution:
        interpreter = await self._ready()
        # Cut nowhere: a character may come in two pieces.
        decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in ("stdout", "stderr")}

        def on_output(stream: Stream, data: bytes) -> None:
            if text := decoders[stream].decode(data):
                publish("stream", {"name": stream, "text": terminal_text(text)})

        interpreter.tools[_DISPLAY] = lambda message: publish(*_shown(message))
        done = await interpreter.execute(self._translated(code), timeout=self.timeout, on_output=on_output)
        for artifact in done.artifacts:
            if artifact.media_type in _PICTURES:
                publish("display_data", {"data": await self._picture(interpreter, artifact), "metadata": {}})
        if done.error is None and done.value_text is not None:
            shown = None if _is_plain(done.value) else await self._ask("show()")
            forms = shown or {"text/plain": done.value_text}
            result = {"execution_count": self.execution_count, "data": safe_forms(forms), "metadata": {}}
            publish("execute_result", result)
        if done.state_lost:
            self._is_set_up = False
        return done

    def _translated(self, code: str) -> str:
        """With `!commands` and magics as calls of `get_ipython()`. Python stays as it is."""
        if not _SPECIAL.search(code):
            return code
        try:
            return str(self._cells.transform_cell(code))
        except SyntaxError:
            return code  # whose error the box tells

    @staticmethod
    async def _picture(interpreter: Interpreter, artifact: Artifact) -> dict[str, str]:
        data = await interpreter.read_artifact(artifact)
        return {artifact.media_type: base64.b64encode(data).decode(), "text/plain": terminal_text(f"<{artifact.name}>")}

    def _publisher(self, silent: bool) -> Callable[[str, Mapping[str, Any]], None]:
        """What the cell that runs now has to say. It stays its own, whoever says it."""
        session, socket, parent = self.session, self.iopub_socket, self.get_parent()

        def publish(kind: str, content: Mapping[str, Any]) -> None:
            if session is not None and not silent:
                session.send(socket, kind, dict(content), parent=parent, ident=self._topic(kind))

        return publish

    async def _work(self, work: Any) -> Any:
        """So that it can be interrupted, from wherever."""
        self._loop = asyncio.get_running_loop()
        self._working = asyncio.create_task(work)
        try:
            return await self._working
        finally:
            self._working = None

    def options(self) -> dict[str, Any]:
        """Of its interpreter."""
        return {"template": self.template or None, "model": self.model or None, "timeout": self.timeout}

    async def _ready(self) -> Interpreter:
        if self._interpreter is None:
            # Jupyter starts a kernel again with the same file: the box of one that was killed is found, and replaced.
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

    # --- names ---

    async def do_complete(self, code: str, cursor_pos: int) -> dict[str, Any]:
        told = await self._ask(f"complete({code[:cursor_pos].rpartition(chr(10))[2]!r})")
        begun = told.get("begun", 0) if told else 0
        matches = told.get("matches", []) if told else []
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
        told = await self._ask(f"explain({name!r})") if name else None
        text = told.get("text") if told else None
        data = {"text/plain": terminal_text(text)} if isinstance(text, str) else {}
        return {"status": "ok", "found": bool(data), "data": data, "metadata": {}}

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        status, indent = self._cells.check_complete(code)
        return {"status": status, **({"indent": " " * (indent or 0)} if status == "incomplete" else {})}

    async def _ask(self, call: str) -> dict[str, Any] | None:
        """What the helper in the box says; None where it does not answer. Nothing of it is seen in the notebook."""
        interpreter = self._interpreter
        if interpreter is None or not self._is_set_up:
            return None
        printed = bytearray()
        # By statements alone: code may have given `exec` or `globals` another meaning. The name is gone after it.
        code = f"import holdfast.guest.kernel.notebook as {_MODULE}\n{_MODULE}.{call}\ndel {_MODULE}"
        with contextlib.suppress(HoldfastError, ValueError):
            work = interpreter.execute(code, timeout=_GRACE_SECONDS, on_output=lambda _, data: printed.extend(data))
            done = await self._work(work)
            told = json.loads(printed) if done.ok else None
            return told if isinstance(told, dict) else None
        return None

    # --- interrupts, and the end ---

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Comes on a loop of its own, while a cell runs."""
        loop = self._loop
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._interrupt(), loop)
        if self.session is not None:
            self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    async def _interrupt(self) -> None:
        """KeyboardInterrupt in the cell; one that goes on all the same is killed."""
        working, interpreter = self._working, self._interpreter
        if working is None:
            return
        if interpreter is not None and interpreter.is_executing:
            with contextlib.suppress(InterpreterError, BoxError):
                await interpreter.interrupt(grace=_GRACE_SECONDS)
                return  # the cell ends by itself, or is killed: either way, it says what came of it
        working.cancel()

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        loop, interpreter = self._loop, self._interpreter
        self._interpreter = None
        if interpreter is not None and loop is not None:
            with contextlib.suppress(HoldfastError):
                work = asyncio.run_coroutine_threadsafe(interpreter.shutdown(), loop)
                await asyncio.wrap_future(work)
        return {"status": "ok", "restart": restart}


def _as_error(error: CodeError) -> dict[str, Any]:
    traceback = terminal_text(error.traceback).rstrip("\n").split("\n")
    return {"ename": terminal_text(error.kind), "evalue": terminal_text(error.message), "traceback": traceback}


def _is_plain(value: Any) -> bool:
    """Whether its text is all that there is to be seen of it."""
    return isinstance(value, bool | int | float | str | list) or (isinstance(value, dict) and MARK not in value)


def _shown(message: Any) -> tuple[str, dict[str, Any]]:
    """What `display` and its kin ask for, as a box says it: a message of Jupyter's, and nothing else."""
    told = message if isinstance(message, Mapping) else {}
    if told.get("clear"):
        return "clear_output", {"wait": bool(told.get("wait"))}
    content: dict[str, Any] = {"data": safe_forms(told.get("forms", {})), "metadata": {}}
    if isinstance(id := told.get("id"), str):
        content["transient"] = {"display_id": id[:_LONGEST_ID]}
    return ("update_display_data" if told.get("update") else "display_data"), content


def main() -> None:
    """One kernel, to its end. Jupyter says by arguments where it is to be reached."""
    IPKernelApp.launch_instance(kernel_class=BoxKernel)


if __name__ == "__main__":
    main()
