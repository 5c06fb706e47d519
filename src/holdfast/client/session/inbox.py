"""Messages of sessions to people: `client.inbox`. Needs an API key."""

from __future__ import annotations

from holdfast.api.session.inbox import InboxMessage, InboxPage, InboxReply, SentReply
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import Resource


class Inbox:
    """The messages to people on one server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._inbox = Resource(connection, "/v1/inbox")

    async def list(
        self, *, to: str | None = None, unread: bool = False, after: str | None = None, limit: int = 50
    ) -> list[InboxMessage]:
        """Returns messages to one person, or to all people, oldest first."""
        wanted = {"to": to, "unread": "true" if unread else None, "after": after, "limit": str(limit)}
        parameters = [(name, value) for name, value in wanted.items() if value is not None]
        return list((await self._inbox.ask("GET", parameters=parameters)).read(InboxPage.from_json).messages)

    async def read(self, id: str) -> InboxMessage:
        """Returns a message, and marks it as read."""
        return (await self._inbox.below(id).ask("POST", "/read")).read(InboxMessage.from_json)

    async def reply(self, id: str, text: str) -> SentReply:
        """Answer a message. The session that wrote it gets the answer as a prompt."""
        document = InboxReply(text=text).to_request()
        answer = await self._inbox.below(id).ask("POST", "/reply", document, repeatable=False)
        return answer.read(SentReply.from_json)

    async def delete(self, id: str) -> None:
        await self._inbox.below(id).ask("DELETE")
