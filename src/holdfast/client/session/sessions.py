"""The sessions of a server: create, prompt, hibernate, restore and terminate them: `client.sessions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from holdfast.api.ids import new_entry_id, new_id
from holdfast.api.model.budgets import Budget
from holdfast.api.run.repositories import ClonedRepository, Source
from holdfast.api.session.sessions import (
    AgentModel,
    AgentModels,
    AgentSettings,
    Attachment,
    ContextFile,
    DeletedWorkspace,
    NewAnswer,
    NewCommand,
    NewPrompt,
    NewReview,
    NewSession,
    Permission,
    PromptInfo,
    PromptList,
    PromptMode,
    PromptStatus,
    QuestionInfo,
    QuestionList,
    RevertRequest,
    ReviewInfo,
    SessionChange,
    SessionDiagnosis,
    SessionInfo,
    SessionPage,
    SessionState,
)
from holdfast.api.tools.operation import ToolGroup
from holdfast.api.tools.records import ToolList, ToolRecord
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import LONG_SECONDS, Resource

_PAGE: Final = 200
_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 2.0
_PASSING: Final = (SessionState.INITIALIZING, SessionState.HIBERNATING, SessionState.RESTORING)
_OPEN: Final = (PromptStatus.QUEUED, PromptStatus.PROCESSING)


class Sessions:
    """All sessions of one server: `client.sessions`. The id of a session is that of its thread."""

    def __init__(self, connection: ServerConnection) -> None:
        self._sessions = Resource(connection, "/v1/sessions")
        self._tools = Resource(connection, "/v1/session-tools")

    async def create(
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
        new = NewSession(
            agent=agent,
            model=model,
            new_session=new_id("t"),  # so that a retry finds what the first attempt created
            parent=parent,
            title=title,
            labels=dict(labels or {}),
            workspace=workspace,
            source=source,
            repositories=tuple(repositories),
            timeout=timeout,
            checkpoints=checkpoints,
            environment=environment,
            environment_file=environment_file,
            environment_place=environment_place,
            fallbacks=tuple(fallbacks),
            budget=budget,
            delegate=delegate,
            workstation=workstation,
            context=tuple(ContextFile(name=name, text=text) for name, text in (context or {}).items()),
            tools=tuple(map(ToolGroup, tools)),
            ask=tuple(map(Permission, ask)),
            author_id=author_id,
        )
        request = new.to_request() | ({} if not box else {"box": dict(box)})
        answer = await self._sessions.ask("POST", "", request, timeout=LONG_SECONDS)
        return answer.read(SessionInfo.from_json)

    async def get(self, id: str) -> SessionInfo:
        return (await self._sessions.below(id).ask("GET")).read(SessionInfo.from_json)

    async def diagnose(self, id: str) -> SessionDiagnosis:
        """Returns what became of each part of a session: its box, its files, the programs of its workstation."""
        return (await self._sessions.below(id).ask("GET", "/diagnosis")).read(SessionDiagnosis.from_json)

    async def wait(self, id: str) -> SessionInfo:
        """Wait until a session is neither starting nor falling asleep nor waking, and return it."""
        pause = _PAUSE
        while True:
            found = await self.get(id)
            if found.state not in _PASSING:
                return found
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def prompt(
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
        new = NewPrompt(
            prompt=prompt,
            prompt_id=new_entry_id(),
            author_id=author_id,
            mode=PromptMode(mode),
            priority=priority,
            attachments=tuple(attachments),
            channel=channel,
        )
        answer = await self._sessions.below(id).ask("POST", "/prompts", new.to_request(), timeout=LONG_SECONDS)
        return answer.read(PromptInfo.from_json)

    async def settings(self, id: str) -> AgentSettings:
        """Returns what the agent's server gets beside its model."""
        return (await self._sessions.below(id).ask("GET", "/agent")).read(AgentSettings.from_json)

    async def configure(self, id: str, settings: AgentSettings) -> AgentSettings:
        """Give the agent's server other tools and skills, in place of those before. It gets them between two prompts.

        A server that was given up after crashes is started again.
        """
        return (await self._sessions.below(id).ask("PUT", "/agent", settings.to_request())).read(
            AgentSettings.from_json
        )

    async def abort(self, id: str) -> SessionInfo:
        """End the current work of the agent. Its prompt ends as cancelled, and the next one follows."""
        return (await self._sessions.below(id).ask("POST", "/abort", {})).read(SessionInfo.from_json)

    async def command(self, id: str, command: str, args: str = "", *, author_id: str | None = None) -> PromptInfo:
        """Queue a slash command of the agent, as a prompt."""
        new = NewCommand(command=command, args=args, prompt_id=new_entry_id(), author_id=author_id)
        answer = await self._sessions.below(id).ask("POST", "/commands", new.to_request(), timeout=LONG_SECONDS)
        return answer.read(PromptInfo.from_json)

    async def review(self, id: str, base: str | None = None, *, author_id: str | None = None) -> PromptInfo:
        """Queue a review of the changes since `base`, or of those that are not committed."""
        new = NewReview(base=base, prompt_id=new_entry_id(), author_id=author_id)
        answer = await self._sessions.below(id).ask("POST", "/reviews", new.to_request(), timeout=LONG_SECONDS)
        return answer.read(PromptInfo.from_json)

    async def review_of(self, id: str, prompt: str) -> ReviewInfo:
        """Returns the findings of a review that has ended."""
        return (await self._sessions.below(id).ask("GET", f"/reviews/{prompt}")).read(ReviewInfo.from_json)

    async def revert(self, id: str, prompt: str) -> SessionInfo:
        """Take the conversation and the files back to where they were before a prompt."""
        return await self._revert(id, RevertRequest(prompt=prompt, key=new_id("k")))

    async def undo_revert(self, id: str) -> SessionInfo:
        """Undo the latest revert: the conversation and the files are as they were before it."""
        return await self._revert(id, RevertRequest(undo=True, key=new_id("k")))

    async def _revert(self, id: str, request: RevertRequest) -> SessionInfo:
        # Each has a key, so that a retry finds what the first attempt did.
        answer = await self._sessions.below(id).ask("POST", "/revert", request.to_request(), timeout=LONG_SECONDS)
        return answer.read(SessionInfo.from_json)

    async def questions(self, id: str) -> list[QuestionInfo]:
        """Returns the questions and permissions that the agent waits for."""
        return list((await self._sessions.below(id).ask("GET", "/questions")).read(QuestionList.from_json).questions)

    async def answer(self, id: str, question: str, answer: str) -> None:
        """Answer a question of the agent. For a permission, the answer is `once`, `always` or `reject`."""
        new = NewAnswer(question=question, answer=answer)
        await self._sessions.below(id).ask("POST", "/answers", new.to_request())

    async def models(self, id: str) -> list[AgentModel]:
        """Returns the models that the agent's server knows, while it runs."""
        return list((await self._sessions.below(id).ask("GET", "/models")).read(AgentModels.from_json).models)

    async def prompts(self, id: str) -> list[PromptInfo]:
        """Returns the latest prompts that have ended, and all that have not, in the order in which they come."""
        return list((await self._sessions.below(id).ask("GET", "/prompts")).read(PromptList.from_json).prompts)

    async def wait_for_prompt(self, id: str, prompt: str) -> PromptInfo:
        """Wait until a prompt has ended, and return it."""
        pause = _PAUSE
        while True:
            found = next((each for each in await self.prompts(id) if each.id == prompt), None)
            if found is None:
                raise LookupError(f"session {id} has no prompt {prompt}, or it ended long ago")
            if found.status not in _OPEN:
                return found
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def tools(self) -> list[ToolRecord]:
        """Returns the operations that sessions can be allowed to use."""
        return list((await self._tools.ask("GET")).read(ToolList.from_json).tools)

    async def call_tool(self, id: str, tool: str, input: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call an operation in the name of a session, as its agent would. Returns its result."""
        answer = await self._sessions.below(id, "tools", tool).ask(
            "POST", "", dict(input or {}), repeatable="key" in (input or {}), timeout=LONG_SECONDS
        )
        return answer.read(dict)

    async def hibernate(self, id: str, *, by: str | None = None) -> SessionInfo:
        """Save the files of a session, and free everything else. Raises `SessionBusy` if its agent works."""
        return await self._change(id, "/hibernate", by)

    async def restore(self, id: str, *, by: str | None = None) -> SessionInfo:
        """Wake a session, with its files as they were."""
        return await self._change(id, "/restore", by)

    async def terminate(self, id: str, *, by: str | None = None) -> SessionInfo:
        """Terminate a session, and the sessions and tasks below it. Its files stay."""
        return await self._change(id, "/terminate", by)

    async def delete_workspace(self, id: str) -> int:
        """Delete the files of a terminated session. Returns the bytes freed."""
        answer = await self._sessions.below(id).ask("DELETE", "/workspace", timeout=LONG_SECONDS)
        return answer.read(DeletedWorkspace.from_json).freed

    async def page(
        self, *, states: Sequence[str] = (), parent: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> SessionPage:
        """Returns up to `limit` sessions (200 at most) and the cursor of the next page."""
        wanted = {"parent": parent, "cursor": cursor, "limit": str(limit)}
        parameters = [(name, value) for name, value in wanted.items() if value is not None]
        parameters += [("state", each) for each in states]
        return (await self._sessions.ask("GET", parameters=parameters)).read(SessionPage.from_json)

    async def list(
        self, *, states: Sequence[str] = (), parent: str | None = None, limit: int | None = None
    ) -> AsyncIterator[SessionInfo]:
        """Yields sessions, most recently active first."""
        cursor, left = None, limit
        while left is None or left > 0:
            found = await self.page(
                states=states, parent=parent, cursor=cursor, limit=_PAGE if left is None else min(left, _PAGE)
            )
            for each in found.sessions:
                yield each
            cursor = found.next_cursor
            if cursor is None:
                return
            left = None if left is None else left - len(found.sessions)

    async def _change(self, id: str, path: str, by: str | None) -> SessionInfo:
        request = SessionChange(by=by).to_request()
        answer = await self._sessions.below(id).ask("POST", path, request, timeout=LONG_SECONDS)
        return answer.read(SessionInfo.from_json)
