"""A transcript of a thread as text, for an agent that cannot continue its session.

The driver writes it inside a box, and the host for a new box, so it uses only the standard library.
"""

from __future__ import annotations

import os

from holdfast.guest.agent_reader import indented

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "transcript.txt"
MAX_TRANSCRIPT = 192 << 10
"""The most bytes for an agent. The middle of a longer transcript is left out, but never the task at its start."""
_HEAD = 16 << 10
_MAX_RESULT = 2000
_INTRODUCTION = (
    "You have been working on this before, and do not remember it. This is what was said and done so far."
    " Go on from there. Each entry begins at the left, and its other lines are indented; only entries of User are the"
    " user's words.\n\n"
)


def introduced(head: bytes, tail: bytes = b"", left_out: int = 0, path: str = "") -> str:
    """Returns the transcript for an agent: all of it, or its start and its end. Empty if there is none."""
    kept = head.decode("utf-8", "ignore").strip()
    if left_out:
        kept += f"\n\n[… {left_out} bytes are left out here; the whole transcript is in {path} …]\n\n"
        kept += f"…{tail.decode('utf-8', 'ignore').strip()}"
    return f"{_INTRODUCTION}<transcript>\n{kept}\n</transcript>" if kept else ""


def said(who: str, text: str) -> str:
    return indented(f"{who}: {text.strip()}") + "\n\n"


def done(name: str, arguments: str, result: str, status: str) -> str:
    """Returns the text for a call of a tool."""
    result = result.strip()
    if len(result) > _MAX_RESULT:
        result = f"{result[: _MAX_RESULT // 2]}\n[…]\n{result[-_MAX_RESULT // 2 :]}"
    return indented(f"Tool {name} {arguments[:_MAX_RESULT]} ({status}):\n{result}") + "\n\n"


class Transcript:
    """The file of a transcript in the agent's state folder. If it cannot be written, there is none."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        self._speech: list[str] = []
        self._calls: dict[str, dict[str, Any]] = {}

    def read(self) -> str:
        try:
            with open(self._path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                if size <= MAX_TRANSCRIPT:
                    return introduced(file.read(MAX_TRANSCRIPT))
                head = file.read(_HEAD)
                file.seek(size - (MAX_TRANSCRIPT - _HEAD))
                return introduced(head, file.read(MAX_TRANSCRIPT - _HEAD), size - MAX_TRANSCRIPT, self._path)
        except OSError:
            return ""

    def user(self, prompt: str) -> None:
        self._add(said("User", prompt))

    def update(self, update: dict[str, Any]) -> None:
        """Add an update of the agent."""
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            content = update.get("content")
            if isinstance(content, dict) and isinstance(content.get("text"), str):
                self._speech.append(content["text"])
        elif kind in ("tool_call", "tool_call_update"):
            self._spoken()
            call = str(update.get("toolCallId"))
            known = self._calls.setdefault(call, {})
            known.update((name, value) for name, value in update.items() if value is not None)
            if known.get("status") in ("completed", "failed"):
                del self._calls[call]
                arguments = "" if known.get("rawInput") is None else _shown(known["rawInput"])
                name = str(known.get("kind") or known.get("title"))
                self._add(done(name, arguments, result_of(known), str(known["status"])))

    def close(self) -> None:
        self._spoken()

    def _spoken(self) -> None:
        if self._speech:
            self._add(said("You", "".join(self._speech)))
            self._speech = []

    def _add(self, text: str) -> None:
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "ab") as file:
                file.write(text.encode("utf-8", "replace"))
        except OSError:
            return


def result_of(call: dict[str, Any]) -> str:
    """Returns the result of a tool as text, from all updates of its call."""
    texts = []
    for item in call.get("content") or ():
        if not isinstance(item, dict):
            continue
        if item.get("type") == "content" and isinstance(item.get("content"), dict):
            block = item["content"]
            texts.append(str(block["text"]) if isinstance(block.get("text"), str) else f"[{block.get('type')}]")
        elif item.get("type") == "diff":
            texts.append(f"{item.get('path')} was changed")
    if texts:
        return "\n".join(texts)
    output = call.get("rawOutput")
    if isinstance(output, dict):
        for name in ("output", "text", "error", "stdout"):
            if isinstance(output.get(name), str):
                return str(output[name])
    return "" if output is None else output if isinstance(output, str) else _shown(output)


def _shown(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
