"""Compares two threads that were forked from one another, or from the same one: what each did since they parted."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast.api.box.records import Owner
from holdfast.api.box.spec import Lifetime
from holdfast.api.environments import EnvironmentUse
from holdfast.api.errors import InvalidRequest, NotFound
from holdfast.api.errors.boxes import ExecTimeout
from holdfast.api.errors.runs import NoCheckpoint, NoFiles, NotRelated, ThreadBusy
from holdfast.api.model.budgets import Cost
from holdfast.api.run.checkpoints import Branch, Comparison, TestResult
from holdfast.api.run.info import TokenUsage
from holdfast.api.thread.threads import ForkSource
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.checkpoint.checkpoints import Checkpoints
from holdfast.runs.checkpoint.rewinds import Rewinds
from holdfast.runs.checkpoint.turns import Turn, Turns
from holdfast.runs.errors import LaunchFailed
from holdfast.runs.launch.plan import LaunchPlanner, environment_of, next_options
from holdfast.runs.launch.services import start_services
from holdfast.runs.run_log import RunLog
from holdfast.runs.workspace.diff import compare, tracked_files
from holdfast.runs.workspace.git_trees import MAX_ARCHIVE
from holdfast.runs.workspace.store import Workspaces
from holdfast.threads.checkpoints import Files
from holdfast.threads.projection import Projection
from holdfast.threads.rows import SpendingFilter, ThreadRow, cost_of
from holdfast.time_limit import time_limit

_DEEPEST: Final = 100
_COPY_SECONDS: Final = 60
"""If the server dies, a box that was only made to compare is removed after this time."""
_ARCHIVE_SECONDS: Final = 120.0
_MOST_OUTPUT: Final = 20_000
_END: Final = 1 << 62
_NOT_RUN: Final = 125
"""The exit code of a test that cannot be run, as of programs that run others."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A thread that another descends from, or the thread itself."""

    thread: str
    turn: int
    """The last turn that the two have in common."""
    offset: int
    fork: str | None = None
    """The descendant that was forked from it there."""


def parting(first: Sequence[Ancestor], second: Sequence[Ancestor]) -> tuple[Ancestor, Ancestor] | None:
    """Returns the nearest thread that both descend from, as each of them sees it. Each list begins with the thread."""
    by_thread = {each.thread: each for each in reversed(second)}
    return next(((each, by_thread[each.thread]) for each in first if each.thread in by_thread), None)


class Comparisons:
    """Compares branches. Changes neither of them."""

    def __init__(
        self,
        log: RunLog,
        boxes: Boxes,
        checkpoints: Checkpoints,
        turns: Turns,
        rewinds: Rewinds,
        planner: LaunchPlanner,
        projection: Projection,
        workspaces: Workspaces,
        *,
        ticks: Callable[[], int],
    ) -> None:
        self._workspaces = workspaces
        self._log = log
        self._boxes = boxes
        self._checkpoints = checkpoints
        self._turns = turns
        self._rewinds = rewinds
        self._planner = planner
        self._projection = projection
        self._ticks = ticks

    async def compare(
        self, first: str, second: str, *, test: str | None, seconds: int, without_test: bool = False
    ) -> Comparison:
        """Without `test`, both are tested as the environment of the first says, or else that of the second: the same
        command for both. Raises `NotRelated`, `NoCheckpoint` or `NoFiles`.
        """
        if first == second:
            raise InvalidRequest("a thread cannot be compared with itself", hint="holdfast diff shows what it changed")
        for thread in (first, second):
            await self._checkpoints.settle(thread)
            await self._rewinds.finish(thread)
        found = parting(await self._ancestors(first), await self._ancestors(second))
        if found is None:
            raise NotRelated(
                f"threads {first} and {second} have no turn in common",
                hint=f"compare a thread with a fork of it: holdfast fork {first}",
            )
        nearest = min(found, key=lambda each: each.offset)
        assert nearest.fork is not None
        # The fork itself knows the files, even if the thread that it was forked from does not have them any more.
        point = await self._turns.find(nearest.fork, str(nearest.turn))
        if test is None and not without_test:
            uses = [await self._environment_of(thread) for thread in (first, second)]
            test = next((use.test for use in uses if use is not None and use.test is not None), None)
        async with self._archive(await self._log.row(first), point.files) as base:
            branches = [
                await self._branch(thread, nearest.turn, base, test=test, seconds=seconds) for thread in (first, second)
            ]
        return Comparison(
            parted=ForkSource(thread=nearest.thread, turn=nearest.turn),
            branches=(branches[0], branches[1]),
            test=test,
        )

    async def _environment_of(self, thread: str) -> EnvironmentUse | None:
        last = (await self._log.runs(thread)).latest
        return None if last is None else environment_of(last)

    async def _ancestors(self, thread: str) -> list[Ancestor]:
        found = [Ancestor(thread, _END, _END)]
        for _ in range(_DEEPEST):
            try:
                source = (await self._log.row(found[-1].thread)).lineage.fork_of
            except NotFound:
                break
            if source is None:
                break
            last = found[-1]
            earlier = last.offset <= source.offset
            found.append(
                replace(last, thread=source.thread)
                if earlier
                else Ancestor(source.thread, source.turn, source.offset, last.thread)
            )
        return found

    @asynccontextmanager
    async def _box(self, row: ThreadRow) -> AsyncIterator[BoxRow]:
        """Yields the box of a thread. Without one, a box with the files of its latest turn, which is deleted after the
        block. Raises `NoFiles`.
        """
        box = await self._planner.box_of(row.id)
        if box is not None:
            yield box
            return
        try:
            saved = await self._turns.find(row.id, None)
        except (NoCheckpoint, ThreadBusy) as error:
            raise NoFiles(
                f"thread {row.id} has no box, and no saved files either: {error.message}",
                hint=f"give it a box: holdfast resume {row.id}",
            ) from None
        async with self._restored(row, saved.files) as restored:
            yield restored

    @asynccontextmanager
    async def _restored(self, like: ThreadRow, files: Files) -> AsyncIterator[BoxRow]:
        """Yields a box with these files, in which the thread could work. It is deleted after the block."""
        box = await self._planner.box_of(like.id)
        if box is None:
            agent = None if like.runs.latest is None else like.runs.latest.agent
            spec = self._planner.fit(next_options(like.runs, agent, None, None, like.lineage.base)).box
        else:
            spec = box.spec
        spec = replace(
            spec,
            provider=files.provider,
            image=files.image,
            lifetime=Lifetime.EPHEMERAL,
            idle_seconds=_COPY_SECONDS,
            on_idle=None,
        )
        row = await self._boxes.restore(files.snapshot, spec, owner=Owner())
        try:
            yield row
        finally:
            await self._boxes.delete(row.id)

    @asynccontextmanager
    async def _archive(self, like: ThreadRow, files: Files) -> AsyncIterator[Path]:
        """Yields an archive of the workspace at that time."""
        with tempfile.TemporaryDirectory(prefix="holdfast-compare-", ignore_cleanup_errors=True) as folder:
            archive = Path(folder) / "base.tar"
            async with self._restored(like, files) as row:
                with archive.open("wb") as out, self._boxes.using(row.id):
                    async with time_limit(_ARCHIVE_SECONDS), await self._boxes.open(row.id) as box:
                        size = 0
                        async for piece in box.files.download_tar(box.spec.workdir):
                            size += len(piece)
                            if size > MAX_ARCHIVE:
                                raise NoFiles(
                                    f"the workspace has more than {MAX_ARCHIVE >> 20} MB: too many to compare"
                                )
                            await asyncio.to_thread(out.write, piece)
            yield archive

    async def _branch(self, thread: str, since: int, base: Path, *, test: str | None, seconds: int) -> Branch:
        row = await self._log.row(thread)
        async with self._box(row) as box_row:
            with self._boxes.using(box_row.id):
                async with (
                    await self._boxes.open(box_row.id) as box,
                    compare(
                        base, box.files.download_tar(box.spec.workdir), tracked=await self._began_with(row)
                    ) as compared,
                ):
                    changes = await compared.summary()
            result = None if test is None else await self._test(thread, box_row, test, seconds)
        turns = [each for each in await self._turns.of(thread) if each.number > since]
        return Branch(
            thread=thread,
            title=row.title,
            turns=len(turns),
            files=changes.files,
            patch=changes.patch,
            truncated=changes.truncated,
            ms=sum((each.run.ended_at or self._log.clock()) - each.run.started_at for each in turns),
            usage=used(turns),
            test=result,
            cost=await self._cost([each.run.run for each in turns]),
        )

    async def _began_with(self, row: ThreadRow) -> frozenset[bytes]:
        """Returns the files of the workspace that a thread began with. Those that came later and are ignored, as caches
        are, do not count as changes, although the checkpoint has them.
        """
        digest = row.runs.workspace
        if digest is None:
            return frozenset()
        self._workspaces.check(digest)
        return await tracked_files(self._workspaces.path(digest))

    async def _cost(self, runs: Sequence[str]) -> Cost | None:
        [spent] = await self._projection.spending(SpendingFilter(runs=tuple(runs)), "all")
        return cost_of(spent) if spent.calls else None

    async def _test(self, thread: str, row: BoxRow, command: str, seconds: int) -> TestResult:
        """Run a command in a copy of a box, with the services of the thread's environment: it changes nothing in the
        box itself.
        """
        use = await self._environment_of(thread)
        began = self._ticks()
        copy = await self._boxes.fork(row.id, owner=Owner(), idle_seconds=_COPY_SECONDS)
        try:
            with self._boxes.using(copy.id):
                async with await self._boxes.open(copy.id) as box:
                    output = bytearray()

                    def keep(piece: bytes) -> None:
                        output.extend(piece)
                        del output[:-_MOST_OUTPUT]

                    exit_code: int | None = None
                    try:
                        if use is not None and use.services:
                            await start_services(box, use.services)
                        done = await box.exec(
                            ["sh", "-c", command],
                            cwd=box.spec.workdir,
                            timeout=seconds,
                            on_stdout=keep,
                            on_stderr=keep,
                        )
                        exit_code = done.exit_code
                    except ExecTimeout:
                        pass
                    except LaunchFailed as error:
                        exit_code = _NOT_RUN
                        keep(error.message.encode())
        finally:
            await self._boxes.delete(copy.id)
        return TestResult(exit_code=exit_code, output=output.decode("utf-8", "replace"), ms=self._ticks() - began)


def used(turns: Sequence[Turn]) -> TokenUsage | None:
    """Returns what the turns used together, or None if none of them reported it."""
    reported = [TokenUsage.from_json(each.run.usage) for each in turns if each.run.usage is not None]
    if not reported:
        return None
    return TokenUsage(
        input=sum(each.input for each in reported),
        output=sum(each.output for each in reported),
        cache_read=sum(each.cache_read for each in reported),
        cache_write=sum(each.cache_write for each in reported),
        cost=sum(each.cost for each in reported),
    )
