"""Converts a run to its API type."""

from __future__ import annotations

from holdfast.api.run_info import RunError, RunInfo, TokenUsage
from holdfast.threads.run_events import Run


def run_info(thread: str, run: Run, waiting: int = 0) -> RunInfo:
    """`waiting` are the prompts that are queued for its end."""
    error = run.error
    return RunInfo(
        id=run.run,
        thread=thread,
        agent=run.agent,
        version=run.version,
        model=run.model,
        status=run.status,
        stage=run.stage,
        started_at=run.started_at,
        ended_at=run.ended_at,
        last_sign_at=run.last_sign,
        prompts=run.prompts,
        waiting=waiting,
        resumes=run.resumes,
        provider=run.provider,
        box=run.box,
        box_how=run.box_how,
        files=run.files,
        session=run.session,
        cancel=run.cancel,
        exit_code=run.exit_code,
        error=None
        if error is None
        else RunError(code=error.get("code", "failed"), message=error.get("message", ""), hint=error.get("hint")),
        usage=None if run.usage is None else TokenUsage.from_json(run.usage),
        ended_by=run.ended_by,
    )
