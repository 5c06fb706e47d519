"""What people are shown of a session: the states of its box and its agent, derived from its state and its queue."""

from __future__ import annotations

from typing import Final

from holdfast.api.session.sessions import AgentState, JointState, SandboxState, SessionState
from holdfast.threads.session_events import Session

_SANDBOX: Final = {
    SessionState.INITIALIZING: SandboxState.STARTING,
    SessionState.RUNNING: SandboxState.RUNNING,
    SessionState.HIBERNATING: SandboxState.HIBERNATING,
    SessionState.HIBERNATED: SandboxState.HIBERNATED,
    SessionState.RESTORING: SandboxState.RESTORING,
    SessionState.TERMINATED: SandboxState.STOPPED,
    SessionState.ERROR: SandboxState.ERROR,
}
_AGENT: Final = {
    SessionState.INITIALIZING: AgentState.STARTING,
    SessionState.HIBERNATING: AgentState.SLEEPING,
    SessionState.HIBERNATED: AgentState.SLEEPING,
    SessionState.RESTORING: AgentState.STARTING,
    SessionState.TERMINATED: AgentState.STOPPED,
    SessionState.ERROR: AgentState.ERROR,
}
_JOINT: Final = {
    AgentState.STARTING: JointState.STARTING,
    AgentState.BUSY: JointState.RUNNING_BUSY,
    AgentState.IDLE: JointState.RUNNING_IDLE,
    AgentState.QUEUED: JointState.QUEUED,
    AgentState.SLEEPING: JointState.SLEEPING,
    AgentState.STANDBY: JointState.STANDBY,
    AgentState.STOPPED: JointState.STOPPED,
    AgentState.ERROR: JointState.ERROR,
}


def sandbox_state(session: Session) -> SandboxState:
    return _SANDBOX[session.state]


def agent_state(session: Session, *, busy: bool) -> AgentState:
    """`busy`: a run is in progress, for a prompt or for the result of a task."""
    if session.state is not SessionState.RUNNING:
        return (
            AgentState.QUEUED if session.state is SessionState.HIBERNATED and session.queue else _AGENT[session.state]
        )
    if busy or session.processing:
        return AgentState.BUSY
    if session.queue:
        return AgentState.QUEUED
    return AgentState.IDLE if session.ended_count else AgentState.STANDBY


def joint_state(session: Session, *, busy: bool) -> JointState:
    if session.state is SessionState.RESTORING:
        return JointState.WAKING
    return _JOINT[agent_state(session, busy=busy)]
