"""Messages of sessions to each other and to people, and the answers of people, which come as prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.api.errors import Conflict, InvalidRequest, NotFound
from holdfast.api.ids import new_entry_id
from holdfast.api.tools.mailbox import MOST_MESSAGES, MessageType
from holdfast.runs.run_log import RunLog
from holdfast.sessions.service import Sessions
from holdfast.sessions.tools.caller import Caller, Handler, SessionTree
from holdfast.sessions.tools.mailbox_rows import MessageRow, MessageStore, Recipient

_USUAL: Final = 50
_QUOTED: Final = 500


class Mailbox:
    def __init__(
        self, store: MessageStore, tree: SessionTree, sessions: Sessions, log: RunLog, *, most: int = MOST_MESSAGES
    ) -> None:
        self._store = store
        self._tree = tree
        self._sessions = sessions
        self._log = log
        self._most = most

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"send_notification": self.send, "check_notifications": self.check}

    # --- for sessions ---

    async def send(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        named = [name for name in ("toSessionId", "toUserId", "toHandle") if name in input]
        if len(named) != 1:
            raise InvalidRequest("name exactly one recipient: toSessionId, toUserId or toHandle")
        to = str(input[named[0]])
        if named[0] == "toSessionId":
            kind, to = Recipient.SESSION, (await self._tree.in_tree(caller, to)).id
        else:
            kind, to = Recipient.PERSON, person_name(to)
        if "contextSessionId" in input:
            await self._tree.in_tree(caller, str(input["contextSessionId"]))
        row = MessageRow(
            caller.new_id("n", input),
            kind,
            to,
            MessageType(input.get("messageType", MessageType.NOTIFICATION)),
            str(input["content"]),
            None if caller.person is not None else caller.id,
            caller.person,
            self._log.clock(),
            input.get("contextSessionId"),
            input.get("contextTaskId"),
            input.get("replyToId"),
        )
        if not await self._store.add(row, self._most):
            raise Conflict(f"{to} has {self._most} unread messages, which is the limit")
        return {"notificationId": row.id, "messageId": row.id}

    async def check(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        after = input.get("after")
        found = await self._store.list(
            Recipient.SESSION, caller.id, after=after, unread=after is None, limit=input.get("limit", _USUAL)
        )
        if caller.person is None:
            await self._store.mark_read([each.id for each in found if each.read_at is None], self._log.clock())
        return {"messages": [shown(each) for each in found]}

    # --- for people ---

    async def inbox(self, to: str | None, *, after: str | None, unread: bool, limit: int) -> list[MessageRow]:
        """Returns messages to one person, or to all people, oldest first."""
        name = None if to is None else person_name(to)
        return await self._store.list(Recipient.PERSON, name, after=after, unread=unread, limit=limit)

    async def read(self, id: str) -> MessageRow:
        """Returns a message to a person, and marks it as read."""
        row = await self._to_person(id)
        await self._store.mark_read([row.id], self._log.clock())
        return row

    async def reply(self, id: str, text: str, *, by: str) -> tuple[MessageRow, str]:
        """Send a person's answer to the session that wrote a message, as a prompt. Returns the message, and the id of
        the prompt.
        """
        row = await self._to_person(id)
        if row.from_session is None:
            raise Conflict(f"message {id} was not written by a session, so nobody waits for an answer")
        question = row.content if len(row.content) <= _QUOTED else f"{row.content[:_QUOTED]}…"
        quoted = "\n".join(f"> {line}" for line in question.splitlines())
        prompt = f"[Answer to your message {row.id}:]\n{quoted}\n\n{text}"
        queued = await self._sessions.prompt(row.from_session, prompt, prompt_id=new_entry_id(), author=by)
        await self._store.mark_read([row.id], self._log.clock())
        return row, queued.id

    async def delete(self, id: str) -> None:
        await self._to_person(id)
        await self._store.remove(id)

    async def _to_person(self, id: str) -> MessageRow:
        row = await self._store.get(id)
        if row is None or row.kind is not Recipient.PERSON:
            raise NotFound(f"there is no message {id[:128]!r} to a person", hint="holdfast inbox list")
        return row


def person_name(text: str) -> str:
    """Returns the name by which messages to a person are kept: handles and names are the same, in any case."""
    return text.removeprefix("@").lower()


def shown(row: MessageRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "type": row.type.value,
        "content": row.content,
        "to": row.to,
        "fromSessionId": row.from_session,
        "fromUserId": row.from_person,
        "contextSessionId": row.context_session,
        "contextTaskId": row.context_task,
        "replyToId": row.reply_to,
        "createdAt": row.created_at,
        "readAt": row.read_at,
    }
