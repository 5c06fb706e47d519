"""The client's sessions for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.session.gateway import LINK_SECONDS, TunnelProtocol
from holdfast.sync_twin import SyncHandle, SyncIterator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from holdfast.api.model.budgets import Budget
    from holdfast.api.run.repositories import ClonedRepository, Source
    from holdfast.api.session.gateway import Link, Member, Role, Tunnel
    from holdfast.api.session.inbox import InboxMessage, SentReply, WaitingItem
    from holdfast.api.session.sessions import (
        AgentModel,
        AgentSettings,
        Attachment,
        PromptInfo,
        QuestionInfo,
        ReviewInfo,
        SessionDiagnosis,
        SessionInfo,
        SessionPage,
    )
    from holdfast.api.session.workflows import ExecutionInfo
    from holdfast.api.tools.records import ToolRecord
    from holdfast.client.session.gateway import SessionGateways
    from holdfast.client.session.inbox import Inbox
    from holdfast.client.session.sessions import Sessions
    from holdfast.client.session.workflows import Workflows


class SyncSessions(SyncHandle):
    """`Sessions` for code without `await`."""

    _async: Sessions

    def create(
        self,
        *,
        agent: str | None = None,
        model: str | None = None,
        parent: str | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        workspace: str | None = None,
        source: Source | None = None,
        repositories: Sequence[ClonedRepository] = (),
        box: Mapping[str, Any] | None = None,
        timeout: int | None = None,
        checkpoints: str | None = None,
        environment: str | None = None,
        environment_file: str | None = None,
        environment_place: str | None = None,
        fallbacks: Sequence[str] = (),
        budget: Budget | None = None,
        delegate: bool = False,
        workstation: bool | None = None,
        context: Mapping[str, str] | None = None,
        tools: Sequence[str] = (),
        ask: Sequence[str] = (),
        author_id: str | None = None,
    ) -> SessionInfo:
        """Create a session. Returns once it is on the server's disk; `wait` returns once it runs.

        The options are those of `runs.launch`, and hold for the run of each prompt. When `parent`, another session, is
        terminated, so is this one. `tools` are groups of operations that its agent may use: docs/session-tools.md.
        `workstation` starts a desktop and an editor in its box: by default, if the image for it was built. `context`
        are files for the agent, such as personas, by name. `ask` is what the agent may do only if somebody permits it
        each time, such as `bash` and `edit`: see `questions` and `answer`.
        """
        return self._loop.run(
            self._async.create(
                agent=agent,
                model=model,
                parent=parent,
                title=title,
                labels=labels,
                workspace=workspace,
                source=source,
                repositories=repositories,
                box=box,
                timeout=timeout,
                checkpoints=checkpoints,
                environment=environment,
                environment_file=environment_file,
                environment_place=environment_place,
                fallbacks=fallbacks,
                budget=budget,
                delegate=delegate,
                workstation=workstation,
                context=context,
                tools=tools,
                ask=ask,
                author_id=author_id,
            )
        )

    def get(self, id: str) -> SessionInfo:
        return self._loop.run(self._async.get(id))

    def diagnose(self, id: str) -> SessionDiagnosis:
        """Returns what became of each part of a session: its box, its files, the programs of its workstation."""
        return self._loop.run(self._async.diagnose(id))

    def wait(self, id: str) -> SessionInfo:
        """Wait until a session is neither starting nor falling asleep nor waking, and return it."""
        return self._loop.run(self._async.wait(id))

    def prompt(
        self,
        id: str,
        prompt: str,
        *,
        mode: str = "followup",
        priority: int = 0,
        attachments: Sequence[Attachment] = (),
        channel: str | None = None,
        author_id: str | None = None,
    ) -> PromptInfo:
        """Queue a prompt. Returns once it is on the server's disk. A session that sleeps is woken.

        `mode` is `followup`, `steer` (interrupt the agent) or `collect` (together with others that come soon).
        Each `channel`, such as `web:reviews`, has a conversation of its own with the agent.
        """
        return self._loop.run(
            self._async.prompt(
                id, prompt, mode=mode, priority=priority, attachments=attachments, channel=channel, author_id=author_id
            )
        )

    def settings(self, id: str) -> AgentSettings:
        """Returns what the agent's server gets beside its model."""
        return self._loop.run(self._async.settings(id))

    def configure(self, id: str, settings: AgentSettings) -> AgentSettings:
        """Give the agent's server other tools and skills, in place of those before. It gets them between two prompts.

        A server that was given up after crashes is started again.
        """
        return self._loop.run(self._async.configure(id, settings))

    def abort(self, id: str) -> SessionInfo:
        """End the current work of the agent. Its prompt ends as cancelled, and the next one follows."""
        return self._loop.run(self._async.abort(id))

    def command(self, id: str, command: str, args: str = "", *, author_id: str | None = None) -> PromptInfo:
        """Queue a slash command of the agent, as a prompt."""
        return self._loop.run(self._async.command(id, command, args, author_id=author_id))

    def review(self, id: str, base: str | None = None, *, author_id: str | None = None) -> PromptInfo:
        """Queue a review of the changes since `base`, or of those that are not committed."""
        return self._loop.run(self._async.review(id, base, author_id=author_id))

    def review_of(self, id: str, prompt: str) -> ReviewInfo:
        """Returns the findings of a review that has ended."""
        return self._loop.run(self._async.review_of(id, prompt))

    def revert(self, id: str, prompt: str) -> SessionInfo:
        """Take the conversation and the files back to where they were before a prompt."""
        return self._loop.run(self._async.revert(id, prompt))

    def undo_revert(self, id: str) -> SessionInfo:
        """Undo the latest revert: the conversation and the files are as they were before it."""
        return self._loop.run(self._async.undo_revert(id))

    def questions(self, id: str) -> list[QuestionInfo]:
        """Returns the questions and permissions that the agent waits for."""
        return self._loop.run(self._async.questions(id))

    def answer(self, id: str, question: str, answer: str) -> None:
        """Answer a question of the agent. For a permission, the answer is `once`, `always` or `reject`."""
        self._loop.run(self._async.answer(id, question, answer))

    def models(self, id: str) -> list[AgentModel]:
        """Returns the models that the agent's server knows, while it runs."""
        return self._loop.run(self._async.models(id))

    def prompts(self, id: str) -> list[PromptInfo]:
        """Returns the latest prompts that have ended, and all that have not, in the order in which they come."""
        return self._loop.run(self._async.prompts(id))

    def wait_for_prompt(self, id: str, prompt: str) -> PromptInfo:
        """Wait until a prompt has ended, and return it."""
        return self._loop.run(self._async.wait_for_prompt(id, prompt))

    def tools(self) -> list[ToolRecord]:
        """Returns the operations that sessions can be allowed to use."""
        return self._loop.run(self._async.tools())

    def call_tool(self, id: str, tool: str, input: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call an operation in the name of a session, as its agent would. Returns its result."""
        return self._loop.run(self._async.call_tool(id, tool, input))

    def hibernate(self, id: str, *, by: str | None = None) -> SessionInfo:
        """Save the files of a session, and free everything else. Raises `SessionBusy` if its agent works."""
        return self._loop.run(self._async.hibernate(id, by=by))

    def restore(self, id: str, *, by: str | None = None) -> SessionInfo:
        """Wake a session, with its files as they were."""
        return self._loop.run(self._async.restore(id, by=by))

    def terminate(self, id: str, *, by: str | None = None) -> SessionInfo:
        """Terminate a session, and the sessions and tasks below it. Its files stay."""
        return self._loop.run(self._async.terminate(id, by=by))

    def delete_workspace(self, id: str) -> int:
        """Delete the files of a terminated session. Returns the bytes freed."""
        return self._loop.run(self._async.delete_workspace(id))

    def page(
        self, *, states: Sequence[str] = (), parent: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> SessionPage:
        """Returns up to `limit` sessions (200 at most) and the cursor of the next page."""
        return self._loop.run(self._async.page(states=states, parent=parent, cursor=cursor, limit=limit))

    def list(
        self, *, states: Sequence[str] = (), parent: str | None = None, limit: int | None = None
    ) -> SyncIterator[SessionInfo]:
        """Yields sessions, most recently active first."""
        return SyncIterator._wrap(self._async.list(states=states, parent=parent, limit=limit), self)


class SyncSessionGateways(SyncHandle):
    """`SessionGateways` for code without `await`."""

    _async: SessionGateways

    def link(
        self, session: str, subject: str | None = None, *, role: Role | None = None, seconds: int = LINK_SECONDS
    ) -> Link:
        """Returns a link that opens a session in a browser. Without a subject it is for the caller, who owns it."""
        return self._loop.run(self._async.link(session, subject, role=role, seconds=seconds))

    def members(self, session: str) -> list[Member]:
        return self._loop.run(self._async.members(session))

    def set_member(self, session: str, subject: str, role: Role) -> Member:
        """Give somebody a role."""
        return self._loop.run(self._async.set_member(session, subject, role))

    def remove_member(self, session: str, subject: str) -> None:
        """Take somebody's role. What they have open is closed."""
        self._loop.run(self._async.remove_member(session, subject))

    def revoke(self, session: str, credential: str | None = None) -> None:
        """Revoke a token or the value of a cookie. Without one, revoke everything that opens the session."""
        self._loop.run(self._async.revoke(session, credential))

    def tunnels(self, session: str) -> list[Tunnel]:
        return self._loop.run(self._async.tunnels(session))

    def register_tunnel(
        self, session: str, name: str, port: int, *, protocol: TunnelProtocol = TunnelProtocol.HTTP
    ) -> Tunnel:
        """Let people reach a port of the session's box by a name."""
        return self._loop.run(self._async.register_tunnel(session, name, port, protocol=protocol))

    def delete_tunnel(self, session: str, name: str) -> None:
        self._loop.run(self._async.delete_tunnel(session, name))


class SyncInbox(SyncHandle):
    """`Inbox` for code without `await`."""

    _async: Inbox

    def list(
        self, *, to: str | None = None, unread: bool = False, after: str | None = None, limit: int = 50
    ) -> list[InboxMessage]:
        """Returns messages to one person, or to all people, oldest first."""
        return self._loop.run(self._async.list(to=to, unread=unread, after=after, limit=limit))

    def waiting(self) -> tuple[WaitingItem, ...]:
        """Returns what waits for people, oldest first: questions, permissions, approvals and unread messages."""
        return self._loop.run(self._async.waiting())

    def read(self, id: str) -> InboxMessage:
        """Returns a message, and marks it as read."""
        return self._loop.run(self._async.read(id))

    def reply(self, id: str, text: str) -> SentReply:
        """Answer a message. The session that wrote it gets the answer as a prompt."""
        return self._loop.run(self._async.reply(id, text))

    def delete(self, id: str) -> None:
        self._loop.run(self._async.delete(id))


class SyncWorkflows(SyncHandle):
    """`Workflows` for code without `await`."""

    _async: Workflows

    def run(
        self, session: str, workflow: str, *, variables: Mapping[str, str] | None = None, key: str | None = None
    ) -> ExecutionInfo:
        """Start an execution of a workflow, by its id or slug, in a session."""
        return self._loop.run(self._async.run(session, workflow, variables=variables, key=key))

    def get(self, id: str) -> ExecutionInfo:
        return self._loop.run(self._async.get(id))

    def wait(self, id: str) -> ExecutionInfo:
        """Wait until an execution has ended or waits for approval, and return it."""
        return self._loop.run(self._async.wait(id))

    def approve(self, id: str, resume_token: str, *, approve: bool = True, reason: str | None = None) -> ExecutionInfo:
        """Approve or deny the step that waits. Its token is in `get(id).requires_approval`."""
        return self._loop.run(self._async.approve(id, resume_token, approve=approve, reason=reason))

    def cancel(self, id: str, *, reason: str | None = None) -> ExecutionInfo:
        return self._loop.run(self._async.cancel(id, reason=reason))
