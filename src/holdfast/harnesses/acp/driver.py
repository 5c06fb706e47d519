"""Drives an agent with the Agent Client Protocol, and prints its events as lines of JSON.

The runner starts this in a box instead of the agent, so it needs only the standard library. It reads lines of JSON on
standard input: first `{"type":"prompt","text":...}`, then optionally `{"type":"abort"}`. The box confines the agent, so
every permission that the agent asks for is granted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from holdfast.harnesses.acp import rpc
from holdfast.harnesses.acp.transcript import Transcript
from holdfast.harnesses.acp.workspace import FileRefused, read_text, write_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from holdfast.harnesses.acp.rpc import Message

_PROTOCOL = 1
_INITIALIZE_SECONDS = 120.0
_SESSION_SECONDS = 300.0
_LAST_WORDS = 0.05
"""Seconds after the answer in which updates of the agent are still read."""
_LEAVE_SECONDS = 2.0


class _Refused(Exception):
    """The agent answered with an error, or not at all."""

    def __init__(self, method: str, error: Message) -> None:
        super().__init__(method)
        self.method = method
        self.error = error


class _Aborted(Exception):
    """The run was aborted before there was a turn to cancel."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--workspace", required=True)
    options.add_argument("--state", required=True)
    options.add_argument("--session")
    options.add_argument("--mcp", default="[]", help="The MCP servers of the session, as JSON.")
    options.add_argument("command", nargs="+")
    chosen = options.parse_args(arguments)
    own_input = rpc.Lines(0)
    prompt, early = _prompt(own_input)
    if prompt is None:
        sys.stderr.write("no prompt on standard input\n")
        return 2
    try:
        process = subprocess.Popen(
            chosen.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=chosen.workspace, close_fds=True
        )
    except OSError as error:
        _say({"type": "failed", "stage": "start", "error": {"message": f"{chosen.command[0]}: {error.strerror}"}})
        return 127
    connection = rpc.RpcConnection(process, own_input, early)
    turn = _Turn(connection, chosen.workspace, Transcript(chosen.state), json.loads(chosen.mcp))
    try:
        turn.run(prompt, chosen.session)
    except rpc.Gone:
        return _end_as(process.wait())
    except _Aborted:
        _say({"type": "stop", "result": {"stopReason": "cancelled"}})
    except _Refused as refused:
        _say({"type": "failed", "stage": refused.method, "error": refused.error})
    finally:
        turn.close()
        _leave(process)
    return 0


def _prompt(lines: rpc.Lines) -> tuple[str | None, list[Message]]:
    """Returns the prompt, and the messages that were read with it."""
    while not lines.over:
        messages = lines.read()
        for number, message in enumerate(messages):
            if message.get("type") == "prompt":
                return str(message.get("text", "")), messages[number + 1 :]
    return None, []


def _end_as(code: int) -> int:
    return code if code >= 0 else 128 - code


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Waits for the agent to exit, and ends it if it does not."""
    assert process.stdin is not None
    process.stdin.close()
    for end in (process.terminate, process.kill):
        try:
            process.wait(_LEAVE_SECONDS)
            return
        except subprocess.TimeoutExpired:
            end()
    process.wait()


def _say(record: Message) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


class _Turn:
    """One prompt to the agent, and its complete answer."""

    def __init__(
        self, connection: rpc.RpcConnection, workspace: str, transcript: Transcript, mcp: list[Message]
    ) -> None:
        self._connection = connection
        self._mcp = mcp
        self._workspace = workspace
        self._transcript = transcript
        self._session: str | None = None
        self._replays = False
        self._prompting = False
        self._cancelled = False

    def run(self, prompt: str, session: str | None) -> None:
        agent = self._ask(
            "initialize",
            {
                "protocolVersion": _PROTOCOL,
                "clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": False},
                "clientInfo": {"name": "holdfast", "title": "Holdfast", "version": "1"},
            },
            _INITIALIZE_SECONDS,
        )
        how = self._begin(agent, session)
        before = self._transcript.read() if how == "handed-over" else ""
        _say({"type": "session", "session": self._session, "how": how, "agent": agent.get("agentInfo")})
        _say({"type": "prompt", "text": prompt})
        self._transcript.user(prompt)
        self._prompting = True
        text = f"{before}\n\n{prompt}" if before else prompt
        parameters = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        result = self._ask("session/prompt", parameters, None)
        try:
            self._take(_LAST_WORDS)
        except rpc.Gone:
            pass
        _say({"type": "stop", "result": result})

    def close(self) -> None:
        self._transcript.close()

    # --- the session ---

    def _begin(self, agent: Message, session: str | None) -> str:
        place: Message = {"cwd": self._workspace, "mcpServers": self._mcp}
        if session is not None:
            method = _resume_method(agent.get("agentCapabilities"))
            if method is not None:
                self._replays = True
                try:
                    self._ask(method, {"sessionId": session, **place}, _SESSION_SECONDS)
                    self._session = session
                    return "continued"
                except _Refused as refused:  # the session may be in another box
                    _say({"type": "notice", "text": f"the agent no longer has session {session}",
                          "error": refused.error})  # fmt: skip
                finally:
                    self._replays = False
        made = self._ask("session/new", place, _SESSION_SECONDS)
        self._session = str(made.get("sessionId", ""))
        return "new" if session is None else "handed-over"

    # --- requests in both directions ---

    def _ask(self, method: str, parameters: Message, seconds: float | None) -> Message:
        request = self._connection.request(method, parameters)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise _Refused(method, {"message": f"the agent did not answer {method} within {seconds:.0f} s"})
            answer = self._take(left, request)
            if answer is not None:
                if "error" in answer:
                    error = answer["error"]
                    raise _Refused(method, error if isinstance(error, dict) else {"message": str(error)})
                result = answer.get("result")
                return result if isinstance(result, dict) else {}

    def _take(self, seconds: float | None, request: int | None = None) -> Message | None:
        """Handles incoming messages. Returns the answer to `request`, if it is among them."""
        answer = None
        for by_agent, message in self._connection.receive(seconds):
            if not by_agent:
                self._obey(message)
            elif "method" not in message:
                if request is not None and message.get("id") == request:
                    answer = message
            elif "id" in message:
                self._serve(message)
            elif message["method"] == "session/update":
                self._pass_on(message.get("params"))
        return answer

    def _obey(self, message: Message) -> None:
        if message.get("type") != "abort":
            return
        if not self._prompting:
            raise _Aborted
        self._cancelled = True
        self._connection.notify("session/cancel", {"sessionId": self._session})

    def _pass_on(self, parameters: Any) -> None:
        update = parameters.get("update") if isinstance(parameters, dict) else None
        # Replayed updates are on the thread already.
        if isinstance(update, dict) and not self._replays:
            self._transcript.update(update)
            _say({"type": "update", "update": update})

    def _serve(self, message: Message) -> None:
        method, request, parameters = message["method"], message["id"], message.get("params")
        if not isinstance(parameters, dict):
            parameters = {}
        try:
            if method == "session/request_permission":
                self._connection.answer(request, {"outcome": self._permit(parameters)})
            elif method == "fs/read_text_file":
                text = read_text(
                    self._workspace, parameters.get("path"), parameters.get("line"), parameters.get("limit")
                )
                self._connection.answer(request, {"content": text})
            elif method == "fs/write_text_file":
                write_text(self._workspace, parameters.get("path"), parameters.get("content"))
                self._connection.answer(request, {})
            else:
                self._connection.refuse(request, rpc.NO_SUCH_METHOD, f"method {str(method)[:100]} is not supported")
        except FileRefused as refused:
            self._connection.refuse(request, rpc.WRONG_PARAMETERS, str(refused))
        except OSError as error:
            self._connection.refuse(request, rpc.FAILED, error.strerror or type(error).__name__)

    def _permit(self, parameters: Message) -> Message:
        allowing = None if self._cancelled else _allowing(parameters.get("options"))
        _say({"type": "permission", "request": parameters, "chosen": allowing})
        if allowing is None:
            return {"outcome": "cancelled"}
        return {"outcome": "selected", "optionId": allowing}


def _resume_method(capabilities: Any) -> str | None:
    """Returns the method with which the agent continues an earlier session, or None."""
    if not isinstance(capabilities, dict):
        return None
    if capabilities.get("loadSession") is True:
        return "session/load"
    session = capabilities.get("sessionCapabilities")
    return "session/resume" if isinstance(session, dict) and isinstance(session.get("resume"), dict) else None


def _allowing(options: Any) -> str | None:
    """Returns the option that grants permission, preferably only once."""
    found: dict[str, str] = {}
    for option in options if isinstance(options, list) else ():
        if isinstance(option, dict) and isinstance(option.get("optionId"), str):
            found.setdefault(str(option.get("kind")), option["optionId"])
    return found.get("allow_once") or found.get("allow_always")


if __name__ == "__main__":
    sys.exit(main())
