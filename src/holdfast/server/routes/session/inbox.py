"""REST: messages of sessions to people, and the answers to them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from holdfast.api.limits import Printable
from holdfast.api.session.inbox import (
    InboxMessage,
    InboxPage,
    InboxReply,
    SentReply,
    WaitingItem,
    WaitingKind,
    WaitingList,
)
from holdfast.api.tools.mailbox import MessageType
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Administrator, Use, UseSessions
from holdfast.sessions.tools.mailbox import Mailbox
from holdfast.sessions.tools.mailbox_rows import MessageRow

router = APIRouter(prefix="/v1/inbox", tags=["inbox"], responses=BOX_ERRORS)


async def _mailbox(services: Use, _: Administrator) -> Mailbox:
    return (await services.session_tools.get()).mailbox


_MOST_MESSAGES = 200
UseMailbox = Annotated[Mailbox, Depends(_mailbox)]


@router.get("")
async def list_messages(
    mailbox: UseMailbox,
    to: Annotated[Printable | None, Query(description="Only messages to this person.")] = None,
    unread: bool = False,
    after: Annotated[Printable | None, Query(description="Only messages after this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> InboxPage:
    """List messages to people, oldest first."""
    found = await mailbox.inbox(to, after=after, unread=unread, limit=limit)
    return InboxPage(messages=tuple(map(_message, found)))


@router.get("/waiting")
async def list_waiting(services: Use, sessions: UseSessions, mailbox: UseMailbox) -> WaitingList:
    """List what waits for people: questions and permissions of agents, approvals of workflows, and unread messages."""
    executions = (await services.session_tools.get()).workflows.executions
    found = [
        WaitingItem(
            kind=WaitingKind.PERMISSION if each.kind == "permission" else WaitingKind.QUESTION,
            id=each.id,
            thread=thread,
            text=each.text,
            options=each.options,
            asked_at=each.asked_at,
            expires_at=each.expires_at,
        )
        for thread, each in await sessions.all_questions()
    ]
    for execution in await executions.waiting():
        asked = execution["requiresApproval"]
        found.append(
            WaitingItem(
                kind=WaitingKind.APPROVAL,
                id=execution["executionId"],
                thread=execution["executionId"],
                text=asked["prompt"],
                options=tuple(asked["items"]),
                asked_at=execution["askedAt"],
            )
        )
    approvals = tuple(f"Execution {each.id} of " for each in found if each.kind is WaitingKind.APPROVAL)
    for row in await mailbox.inbox(None, after=None, unread=True, limit=_MOST_MESSAGES):
        if row.type is MessageType.APPROVAL and row.content.startswith(approvals):
            continue  # the approval itself is listed
        found.append(
            WaitingItem(
                kind=WaitingKind.MESSAGE,
                id=row.id,
                thread=row.from_session,
                text=row.content,
                to=row.to,
                asked_at=row.created_at,
                can_reply=row.from_session is not None,
            )
        )
    return WaitingList(waiting=tuple(sorted(found, key=lambda each: each.asked_at)))


@router.post("/{id}/read")
async def read_message(id: Printable, mailbox: UseMailbox) -> InboxMessage:
    """Get a message, and mark it as read."""
    return _message(await mailbox.read(id))


@router.post("/{id}/reply", status_code=201)
async def reply_to_message(id: Printable, reply: InboxReply, mailbox: UseMailbox, grant: Administrator) -> SentReply:
    """Answer a message. The session that wrote it gets the answer as a prompt."""
    row, prompt = await mailbox.reply(id, reply.text, by=grant.caller.user)
    return SentReply(session=row.from_session or "", prompt=prompt)


@router.delete("/{id}", status_code=204)
async def delete_message(id: Printable, mailbox: UseMailbox) -> None:
    """Delete a message."""
    await mailbox.delete(id)


def _message(row: MessageRow) -> InboxMessage:
    return InboxMessage(
        id=row.id,
        to=row.to,
        type=row.type,
        content=row.content,
        session=row.from_session,
        person=row.from_person,
        context_session=row.context_session,
        context_task=row.context_task,
        reply_to=row.reply_to,
        created_at=row.created_at,
        read_at=row.read_at,
    )
