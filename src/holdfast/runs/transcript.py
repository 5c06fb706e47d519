"""What an agent was told and said, for a session to be made again of it: also the prompt that it never came to repeat.

Agents say again what they were asked, but some only when the first answer comes. Of a run that died before that, the
thread has the prompt, and nothing of the agent's that tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.threads.run_events import DELTA, FINISHED, STARTED

_ANSWERS: Final = ("assistant", "call", "tool", "compaction")


class SessionTranscript:
    """Takes the entries of a thread, oldest first, and gives those of one agent, a lost prompt among them."""

    def __init__(self, agent: str, but: str) -> None:
        """`but`: a run whose prompt is not looked for, as it is the one to come."""
        self._agent = agent
        self._but = but
        self._chats: dict[str, str] = {}
        self._unheard: dict[str, Any] | None = None

    def take(self, entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        payload = entry["payload"]
        kind = str(payload.get("type"))
        if kind == "chat":
            if isinstance(payload.get("text"), str):
                self._chats[str(entry["id"])] = payload["text"]
            return []
        if kind == STARTED:
            lost = self._lost()
            if str(payload.get("agent")).partition(":")[0] == self._agent and payload.get("run") != self._but:
                prompts = payload.get("prompts")
                ids = prompts if isinstance(prompts, list) else []
                texts = [self._chats[each] for each in ids if isinstance(each, str) and each in self._chats]
                if texts:
                    user = {"type": f"{self._agent}.user", "text": "\n\n".join(texts)}
                    self._unheard = {"id": f"{entry['id']}-prompt", "ts": entry["ts"], "payload": user}
            return lost
        if kind == FINISHED:
            return self._lost()
        agent, _, event = kind.partition(".")
        if agent != self._agent or kind.endswith(DELTA):
            return []
        if event == "user":
            self._unheard = None
        return [*(self._lost() if event in _ANSWERS else ()), entry]

    def _lost(self) -> list[Mapping[str, Any]]:
        lost, self._unheard = self._unheard, None
        return [] if lost is None else [lost]
