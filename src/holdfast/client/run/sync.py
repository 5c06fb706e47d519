"""The client's runs for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.sync_twin import SyncHandle, SyncIterator, feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from holdfast.api.model.budgets import Budget
    from holdfast.api.run.agents import AgentRecord
    from holdfast.api.run.checkpoints import Comparison, Forked, Rewound, TurnInfo
    from holdfast.api.run.imports import Imported
    from holdfast.api.run.info import RunInfo
    from holdfast.api.run.repositories import ClonedRepository, Source
    from holdfast.api.run.runs import Changes, Diagnosis, Launched, RunPage, Steered
    from holdfast.api.run.tasks import TaskInfo, TaskResult, ThreadTree
    from holdfast.client.run.agents import AgentStore
    from holdfast.client.run.forks import Forks
    from holdfast.client.run.runs import Runs
    from holdfast.client.run.tasks import Tasks


class SyncRuns(SyncHandle):
    """`Runs` for code without `await`."""

    _async: Runs

    def upload(self, folder: Path, *, leave_out: Callable[[Path], bool] = lambda path: False) -> str:
        """Upload a folder for workspaces to start with. Returns its digest. `leave_out` is called for each path."""
        return self._loop.run(self._async.upload(folder, leave_out=leave_out))

    def upload_tar(self, archive: Iterable[bytes]) -> str:
        """Like `upload`, for files that are already a tar archive."""
        return self._loop.run(self._async.upload_tar(feed(archive)))

    def check(
        self,
        *,
        agent: str | None = None,
        model: str | None = None,
        thread: str | None = None,
        box: Mapping[str, Any] | None = None,
        environment: str | None = None,
        environment_file: str | None = None,
        environment_place: str | None = None,
        fallbacks: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> str:
        """Returns the model (`NAME/MODEL`) that a run would use. Raises what `launch` would raise. Starts nothing."""
        return self._loop.run(
            self._async.check(
                agent=agent,
                model=model,
                thread=thread,
                box=box,
                environment=environment,
                environment_file=environment_file,
                environment_place=environment_place,
                fallbacks=fallbacks,
                budget=budget,
            )
        )

    def launch(
        self,
        prompt: str,
        *,
        agent: str | None = None,
        model: str | None = None,
        thread: str | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        workspace: str | None = None,
        source: Source | None = None,
        box: Mapping[str, Any] | None = None,
        timeout: int | None = None,
        checkpoints: str | None = None,
        delegate: bool = False,
        author_id: str | None = None,
        environment: str | None = None,
        environment_file: str | None = None,
        environment_place: str | None = None,
        repositories: Sequence[ClonedRepository] = (),
        fallbacks: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> Launched:
        """Start a run on an existing thread or a new one. Returns once its prompt is on the server's disk.

        `workspace` is a digest that `upload` returned, and `source` where these files came from. `box` configures the
        box with the fields of the API: provider, image, cpu, memory, disk, pids, network, workdir, idleSeconds. The run
        is ended after `timeout` seconds, even if no client is connected any more. With `delegate`,
        the agent gets tools to delegate tasks to other agents. `fallbacks` are models to use if `model` gives no
        answer, in order. `checkpoints` is `every`, `off`, or `every` with limits: when the files of the box are saved.

        `environment` is `NAME` or `NAME@VERSION`, for the fields that are left out; `environment_file` is the text of a
        `holdfast.toml` instead, and `environment_place` the folder or repository where that is. `repositories` are the
        further repositories of the environment, which the workspace has to have. `agent` is required unless the
        environment names one. Raises `SecretMissing`, `EnvironmentNotAllowed` or
        `EnvironmentIncomplete` if the server lacks what it requires.
        """
        return self._loop.run(
            self._async.launch(
                prompt,
                agent=agent,
                model=model,
                thread=thread,
                title=title,
                labels=labels,
                workspace=workspace,
                source=source,
                box=box,
                timeout=timeout,
                checkpoints=checkpoints,
                delegate=delegate,
                author_id=author_id,
                environment=environment,
                environment_file=environment_file,
                environment_place=environment_place,
                repositories=repositories,
                fallbacks=fallbacks,
                budget=budget,
            )
        )

    def import_session(
        self,
        session: str,
        *,
        agent: str,
        title: str | None = None,
        workspace: str | None = None,
        source: Source | None = None,
    ) -> Imported:
        """Create a thread with a session that an agent wrote on this machine. `resume` continues it in a box.

        `session` is the content of the session file; for OpenCode, what `opencode export` prints. With the agent
        `holdfast` it is a thread, as `holdfast export` writes it. A large one is uploaded first.
        """
        return self._loop.run(
            self._async.import_session(session, agent=agent, title=title, workspace=workspace, source=source)
        )

    def resume(
        self,
        id: str,
        prompt: str | None = None,
        *,
        agent: str | None = None,
        model: str | None = None,
        fresh: bool = False,
        box: Mapping[str, Any] | None = None,
        provider: str | None = None,
        network: Mapping[str, Any] | None = None,
        memory: int | None = None,
        disk: int | None = None,
        timeout: int | None = None,
        checkpoints: str | None = None,
        author_id: str | None = None,
        fallbacks: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> Launched:
        """Continue a thread: as before, or with another agent, in a new box, or with another network or limits.

        With `provider`, its box is moved there first, with the files of its workspace. `memory` and `disk` are in
        bytes. `timeout` is in seconds; 0 means no limit.
        """
        return self._loop.run(
            self._async.resume(
                id,
                prompt,
                agent=agent,
                model=model,
                fresh=fresh,
                box=box,
                provider=provider,
                network=network,
                memory=memory,
                disk=disk,
                timeout=timeout,
                checkpoints=checkpoints,
                author_id=author_id,
                fallbacks=fallbacks,
                budget=budget,
            )
        )

    def steer(self, id: str, prompt: str, *, interrupt: bool = False, author_id: str | None = None) -> Steered:
        """Send a prompt to a run in progress. It waits for the run to end, or interrupts it. Returns in `how` what
        happened.
        """
        return self._loop.run(self._async.steer(id, prompt, interrupt=interrupt, author_id=author_id))

    def cancel(self, id: str, *, by: str | None = None) -> RunInfo:
        """End a run. A run that has already ended stays as it is."""
        return self._loop.run(self._async.cancel(id, by=by))

    def get(self, id: str) -> RunInfo:
        return self._loop.run(self._async.get(id))

    def wait(self, id: str) -> RunInfo:
        """Wait until a run has ended, and return it. To watch it work, follow its thread."""
        return self._loop.run(self._async.wait(id))

    def diagnose(self, id: str) -> Diagnosis:
        """Returns how far a run got, what is wrong with it, and what to do."""
        return self._loop.run(self._async.diagnose(id))

    def changes(self, id: str) -> Changes:
        """Compare the workspace of a thread with its initial state."""
        return self._loop.run(self._async.changes(id))

    def patch(self, id: str) -> SyncIterator[bytes]:
        """Yields a patch for `git apply` that turns the initial workspace into the current one."""
        return SyncIterator._wrap(self._async.patch(id), self)

    def changed_files(self, id: str) -> SyncIterator[bytes]:
        """Yields a tar archive with both versions of every changed file: `holdfast.repositories.changes` reads it."""
        return SyncIterator._wrap(self._async.changed_files(id), self)

    def page(
        self,
        *,
        thread: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> RunPage:
        """Returns up to `limit` runs (200 at most) and the cursor of the next page."""
        return self._loop.run(self._async.page(thread=thread, status=status, agent=agent, cursor=cursor, limit=limit))

    def list(
        self,
        *,
        thread: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
    ) -> SyncIterator[RunInfo]:
        """Yields matching runs, newest first, at most `limit`."""
        return SyncIterator._wrap(self._async.list(thread=thread, status=status, agent=agent, limit=limit), self)


class SyncForks(SyncHandle):
    """`Forks` for code without `await`."""

    _async: Forks

    def turns(self, thread: str) -> tuple[TurnInfo, ...]:
        """Returns the turns of a thread, oldest first, with those before it was forked."""
        return self._loop.run(self._async.turns(thread))

    def fork(
        self,
        thread: str,
        at: int | str | None = None,
        *,
        prompt: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        fallbacks: Sequence[str] = (),
        title: str | None = None,
        author_id: str | None = None,
    ) -> Forked:
        """Make a new thread with the entries up to a turn, and a box with the files as they were at its end.

        `at` is the number of a turn, or the id of an entry, which stands for the last turn that had ended when it was
        written. It defaults to the latest turn. With a prompt, a run is launched there.
        `fallbacks` are models to use if `model` gives no answer.
        """
        return self._loop.run(
            self._async.fork(
                thread,
                at,
                prompt=prompt,
                agent=agent,
                model=model,
                fallbacks=fallbacks,
                title=title,
                author_id=author_id,
            )
        )

    def rewind(self, thread: str, at: int | str | None = None, *, key: str | None = None) -> Rewound:
        """Take a thread back to the end of a turn, with its files. What came after stays readable on the thread.

        Calls with the same `key` on the same thread rewind it once. Raises `ThreadBusy` if a run is in progress.
        """
        return self._loop.run(self._async.rewind(thread, at, key=key))

    def undo(self, thread: str, *, key: str | None = None) -> Rewound:
        """Undo the latest rewind of a thread. An undo can be undone in the same way. For `key` see `rewind`."""
        return self._loop.run(self._async.undo(thread, key=key))

    def compare(
        self, first: str, second: str, *, test: str | None = None, seconds: int = 600, without_test: bool = False
    ) -> Comparison:
        """Compare two threads: where they part, and what each has changed and used since then.

        `test` is a command for the shell. It runs in a copy of each box, for `seconds` at most. By default it is the
        test command of their environment, if that has one. `without_test` runs none.
        """
        return self._loop.run(self._async.compare(first, second, test=test, seconds=seconds, without_test=without_test))


class SyncTasks(SyncHandle):
    """`Tasks` for code without `await`."""

    _async: Tasks

    def delegate(
        self,
        thread: str,
        prompt: str,
        *,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        fallbacks: Sequence[str] = (),
        box: str = "own",
        wake: bool = False,
        key: str | None = None,
        author_id: str | None = None,
    ) -> TaskInfo:
        """Start a task of a thread. Returns once it is on the server's disk, before its agent has started.

        `box` is `own`, `fork` (a copy of the thread's box) or `same`. With `wake`, the result starts a run of the
        thread. Calls with the same `key` on the same thread start one task.
        """
        return self._loop.run(
            self._async.delegate(
                thread,
                prompt,
                title=title,
                agent=agent,
                model=model,
                fallbacks=fallbacks,
                box=box,
                wake=wake,
                key=key,
                author_id=author_id,
            )
        )

    def get(self, task: str) -> TaskInfo:
        return self._loop.run(self._async.get(task))

    def list(self, thread: str) -> list[TaskInfo]:
        """Returns the tasks of a thread, most recently active first."""
        return self._loop.run(self._async.list(thread))

    def result(self, task: str, *, wait: bool = True) -> TaskResult:
        """Wait until a task has ended, and return its result. Without `wait`, its `result` is None until then."""
        return self._loop.run(self._async.result(task, wait=wait))

    def cancel(self, task: str, *, by: str | None = None) -> TaskInfo:
        """End a task, and all tasks below it."""
        return self._loop.run(self._async.cancel(task, by=by))

    def tree(self, thread: str) -> ThreadTree:
        """Returns the tree that a thread is in: its root, and the tasks and forks below that."""
        return self._loop.run(self._async.tree(thread))

    def wait(self, thread: str) -> ThreadTree:
        """Wait until a thread and all threads below it have nothing left to do. Returns its tree."""
        return self._loop.run(self._async.wait(thread))


class SyncAgentStore(SyncHandle):
    """`AgentStore` for code without `await`."""

    _async: AgentStore

    def list(self) -> list[AgentRecord]:
        return self._loop.run(self._async.list())

    def get(self, name: str) -> AgentRecord:
        return self._loop.run(self._async.get(name))
