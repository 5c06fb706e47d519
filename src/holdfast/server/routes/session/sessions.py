"""REST: creates, shows, prompts, hibernates, restores and terminates sessions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.api.errors import InvalidRequest
from holdfast.api.limits import EntryId, ThreadId
from holdfast.api.run.info import RunError
from holdfast.api.run.runs import NewRun
from holdfast.api.session.sessions import (
    AgentModel,
    AgentModels,
    AgentSettings,
    DeletedWorkspace,
    NewAnswer,
    NewCommand,
    NewPrompt,
    NewReview,
    NewSession,
    PromptInfo,
    PromptList,
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
    SessionWork,
)
from holdfast.runs.launch.plan import Options
from holdfast.server.environments import require_agent, spec_of
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import UseBoxes, UseEnvironments, UseSessions
from holdfast.server.session.workstations import with_workstation
from holdfast.sessions.queue import in_order
from holdfast.sessions.service import Opening, Sessions
from holdfast.sessions.session_log import session_of
from holdfast.sessions.views import agent_state, joint_state, sandbox_state
from holdfast.threads.rows import RowFilter, ThreadRow, parse_cursor
from holdfast.threads.session_events import WEB, EndedPrompt, QueuedPrompt

router = APIRouter(prefix="/v1", tags=["sessions"], responses=BOX_ERRORS)


@router.post("/sessions", status_code=201)
async def create_session(
    new: NewSession, sessions: UseSessions, environments: UseEnvironments, boxes: UseBoxes
) -> SessionInfo:
    """Create a session. Answers once it is on disk; its box is made next.

    With an environment, everything that it requires has to be there, as for a run.
    """
    # An environment is applied to the request for a run: the settings are the same.
    run, environment = await environments.apply(
        NewRun(
            prompt="a session",
            agent=new.agent,
            model=new.model,
            workspace=new.workspace,
            repositories=new.repositories,
            box=new.box,
            timeout=new.timeout,
            checkpoints=new.checkpoints,
            environment=new.environment,
            environment_file=new.environment_file,
            environment_place=new.environment_place,
            fallbacks=new.fallbacks,
            budget=new.budget,
        )
    )
    options = Options(
        require_agent(run.agent),
        run.model,
        None if run.box is None else spec_of(run.box),
        new.workspace,
        source=new.source,
        timeout=run.timeout,
        checkpoints=run.checkpoints,
        environment=environment,
        fallbacks=run.fallbacks,
        budget=None if run.budget is None or run.budget.is_empty else run.budget,
        delegates=new.delegate,
        context=new.context,
        tools=tuple(each.value for each in dict.fromkeys(new.tools)),
        asks=tuple(each.value for each in dict.fromkeys(new.ask)),
    )
    options = await with_workstation(options, new.workstation, boxes)
    opening = Opening(new.new_session, new.title, dict(new.labels), new.parent, new.author_id)
    return await _info(sessions, await sessions.create(opening, options))


@router.get("/sessions")
async def list_sessions(
    sessions: UseSessions,
    state: Annotated[list[SessionState] | None, Query(description="Only sessions in one of these states.")] = None,
    parent: ThreadId | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> SessionPage:
    """List sessions, most recently active first."""
    page = await sessions.list(
        RowFilter(
            parent=parent,
            archived=None,
            limit=limit,
            after=None if cursor is None else parse_cursor(cursor),
            session=tuple(state or SessionState),
        )
    )
    return SessionPage(sessions=tuple([await _info(sessions, row) for row in page.rows]), next_cursor=page.next_cursor)


@router.get("/sessions/{id}")
async def get_session(id: ThreadId, sessions: UseSessions) -> SessionInfo:
    """Get a session."""
    return await _info(sessions, await sessions.get(id))


@router.post("/sessions/{id}/prompts", status_code=201)
async def prompt_session(id: ThreadId, new: NewPrompt, sessions: UseSessions) -> PromptInfo:
    """Queue a prompt to a session. A session that sleeps is woken. Answers once the prompt is on disk."""
    queued = await sessions.prompt(
        id,
        new.prompt,
        prompt_id=new.prompt_id,
        author=new.author_id,
        mode=new.mode,
        priority=new.priority,
        attachments=new.attachments,
        channel=new.channel,
    )
    return _prompt(queued)


@router.get("/sessions/{id}/prompts")
async def list_prompts(id: ThreadId, sessions: UseSessions) -> PromptList:
    """List the prompts of a session: the latest that have ended, and all that have not."""
    session = session_of(await sessions.get(id))
    prompts: list[QueuedPrompt | EndedPrompt] = [*session.ended, *session.processing, *in_order(session.queued)]
    return PromptList(prompts=tuple(map(_prompt, prompts)))


@router.post("/sessions/{id}/abort")
async def abort_session(id: ThreadId, sessions: UseSessions, change: SessionChange | None = None) -> SessionInfo:
    """End the current work of the agent. Its prompt ends as cancelled, and the next one follows."""
    return await _info(sessions, await sessions.abort(id, by=None if change is None else change.by))


@router.post("/sessions/{id}/commands", status_code=201)
async def command_session(id: ThreadId, new: NewCommand, sessions: UseSessions) -> PromptInfo:
    """Queue a slash command of the agent, as a prompt."""
    return _prompt(await sessions.command(id, new.command, new.args, prompt_id=new.prompt_id, author=new.author_id))


@router.post("/sessions/{id}/revert")
async def revert_session(id: ThreadId, revert: RevertRequest, sessions: UseSessions) -> SessionInfo:
    """Take the conversation and the files back to where they were before a prompt, or undo the latest time."""
    if revert.undo is (revert.prompt is not None):
        raise InvalidRequest("name the prompt to go back to before, or undo, and not both")
    if revert.prompt is None:
        return await _info(sessions, await sessions.undo_revert(id, key=revert.key))
    return await _info(sessions, await sessions.revert(id, revert.prompt, key=revert.key))


@router.post("/sessions/{id}/reviews", status_code=201)
async def review_session(id: ThreadId, new: NewReview, sessions: UseSessions) -> PromptInfo:
    """Queue a review of the changes in the workspace, as a prompt."""
    return _prompt(await sessions.review(id, new.base, prompt_id=new.prompt_id, author=new.author_id))


@router.get("/sessions/{id}/reviews/{prompt}")
async def get_review(id: ThreadId, prompt: EntryId, sessions: UseSessions) -> ReviewInfo:
    """Get the findings of a review that has ended."""
    return ReviewInfo.from_json({**await sessions.review_of(id, prompt), "prompt": prompt})


@router.get("/sessions/{id}/questions")
async def list_questions(id: ThreadId, sessions: UseSessions) -> QuestionList:
    """List the questions and permissions that the agent waits for."""
    return QuestionList(
        questions=tuple(
            QuestionInfo(
                id=each.id,
                kind=each.kind,
                text=each.text,
                options=each.options,
                run=each.run,
                asked_at=each.asked_at,
                expires_at=each.expires_at,
            )
            for each in await sessions.questions(id)
        )
    )


@router.post("/sessions/{id}/answers", status_code=204)
async def answer_question(id: ThreadId, answer: NewAnswer, sessions: UseSessions) -> None:
    """Answer a question of the agent, or give it a permission."""
    await sessions.answer(id, answer.question, answer.answer)


@router.get("/sessions/{id}/agent")
async def get_agent_settings(id: ThreadId, sessions: UseSessions) -> AgentSettings:
    """Get what the agent's server gets beside its model: tools, skills and tools of its own."""
    return await sessions.settings(id)


@router.put("/sessions/{id}/agent")
async def configure_agent(id: ThreadId, settings: AgentSettings, sessions: UseSessions) -> AgentSettings:
    """Give the agent's server other settings, in place of those before. It gets them between two prompts."""
    await sessions.configure(id, settings)
    return settings


@router.get("/sessions/{id}/models")
async def list_agent_models(id: ThreadId, sessions: UseSessions) -> AgentModels:
    """List the models that the agent's server knows, while it runs."""
    found = [
        AgentModel(provider=provider["provider"], id=each["id"], name=each.get("name", each["id"]))
        for provider in await sessions.models(id)
        for each in provider["models"]
    ]
    return AgentModels(models=tuple(found))


@router.get("/sessions/{id}/diagnosis")
async def diagnose_session(id: ThreadId, sessions: UseSessions) -> SessionDiagnosis:
    """Get what became of each part of a session: its box, its files, and the programs of its workstation."""
    return await sessions.diagnose(id)


@router.post("/sessions/{id}/hibernate")
async def hibernate_session(id: ThreadId, sessions: UseSessions, change: SessionChange | None = None) -> SessionInfo:
    """Save the files of a session, and free everything else. Refused while its agent works."""
    return await _info(sessions, await sessions.hibernate(id, by=None if change is None else change.by))


@router.post("/sessions/{id}/restore")
async def restore_session(id: ThreadId, sessions: UseSessions, change: SessionChange | None = None) -> SessionInfo:
    """Wake a session, with its files as they were."""
    return await _info(sessions, await sessions.restore(id, by=None if change is None else change.by))


@router.post("/sessions/{id}/terminate")
async def terminate_session(id: ThreadId, sessions: UseSessions, change: SessionChange | None = None) -> SessionInfo:
    """Terminate a session, and the sessions and tasks below it. Its files stay. One that has ended stays as it is."""
    return await _info(sessions, await sessions.terminate(id, by=None if change is None else change.by))


@router.delete("/sessions/{id}/workspace")
async def delete_workspace(id: ThreadId, sessions: UseSessions) -> DeletedWorkspace:
    """Delete the files of a terminated session: its box and its snapshots. Its thread stays."""
    return DeletedWorkspace(id=id, freed=await sessions.delete_workspace(id))


def _prompt(prompt: QueuedPrompt | EndedPrompt) -> PromptInfo:
    if isinstance(prompt, EndedPrompt):
        status = prompt.status
    else:
        status = PromptStatus.PROCESSING if prompt.is_processing else PromptStatus.QUEUED
    return PromptInfo(
        id=prompt.id,
        status=status,
        mode=prompt.mode,
        priority=prompt.priority,
        created_at=prompt.created_at,
        run=prompt.run,
        attempts=prompt.attempts,
        channel=prompt.channel or WEB,
    )


async def _info(sessions: Sessions, row: ThreadRow) -> SessionInfo:
    session, run, error = session_of(row), row.runs.latest, session_of(row).error
    box = await sessions.box_of(row.id)
    busy = row.runs.live is not None
    return SessionInfo(
        id=row.id,
        title=row.title,
        state=session.state,
        sandbox_state=sandbox_state(session),
        agent_state=agent_state(session, busy=busy),
        joint_state=joint_state(session, busy=busy),
        agent=session.agent,
        model=session.model,
        provider=str(session.options.get("spec", {}).get("provider", "")) if box is None else box.provider,
        parent=session.parent,
        labels=row.labels,
        box=None if box is None else box.id,
        run=None if run is None else run.run,
        queued=len(session.queued),
        processing=len(session.processing),
        ended=session.ended_count,
        why=session.why,
        error=None
        if error is None
        else RunError(code=error.get("code", "failed"), message=error.get("message", ""), hint=error.get("hint")),
        released=session.released,
        workspace=session.workspace,
        work=SessionWork.from_json(session.work) if session.work else None,
        created_at=row.created_at,
        changed_at=session.changed_at,
        last_activity_at=row.last_activity_at,
    )
