"""Starts the services of an environment in a box, and waits until they are ready.

A service is a process that the guest of the box has spawned, with its name and a digest in its arguments. So the box
itself tells which of them are running: a box that was stopped, restored or forked has none, and gets them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process, ProcessState
from holdfast.api.environments import Service
from holdfast.api.errors.boxes import CannotExecute, ConnectRefused, ExecTimeout
from holdfast.boxes.marked_processes import last_output, mark_of, running, stop, unwanted
from holdfast.boxes.shielded import to_the_end
from holdfast.runs.errors import LaunchFailed
from holdfast.time_limit import time_limit

MARK: Final = "holdfast-service"
_CHECK_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
_MOMENT: Final = 0.2
"""How long a service without a check has to run to count as ready."""


def argv_of(service: Service) -> tuple[str, ...]:
    """Returns the arguments of a service. Two services are the same if these are."""
    mark = mark_of(MARK, service.name, [service.command, service.environment])
    # The shell ignores what follows the command but for `$0`. Errors go to the output, in the order that they come.
    return ("/bin/sh", "-c", f"exec 2>&1\n{service.command}", mark)


async def start_services(box: Box, services: Sequence[Service]) -> dict[str, str]:
    """Start what is not running yet, and wait until all are ready. Returns the process of each.

    Raises `LaunchFailed` with the last output of one that is not, and stops what was started here.
    """
    known = await box.processes()
    for id in unwanted(known, MARK, {argv_of(each) for each in services}):
        await stop(await box.process(id))
    there = {each.argv: each.id for each in running(known)}
    started: list[Process] = []
    try:
        processes: dict[str, Process] = {}
        for service in services:
            argv = argv_of(service)
            if argv in there:
                processes[service.name] = await box.process(there[argv])
                continue
            process = await _spawn(box, service)
            started.append(process)
            processes[service.name] = process
        fresh = {each.id for each in started}
        async with asyncio.TaskGroup() as group:
            for service in services:
                process = processes[service.name]
                group.create_task(_wait(box, service, process, moment=process.id in fresh))
    except BaseException as error:
        await to_the_end(_stop_all(started))
        if isinstance(error, BaseExceptionGroup):
            raise _first(error) from None
        raise
    return {name: process.id for name, process in processes.items()}


async def _spawn(box: Box, service: Service) -> Process:
    try:
        return await box.spawn(argv_of(service), env=service.environment, cwd=box.spec.workdir, tree=True)
    except CannotExecute as error:
        raise LaunchFailed("service_failed", f"service {service.name} cannot be started: {error.message}") from None


async def _wait(box: Box, service: Service, process: Process, *, moment: bool) -> None:
    limit, pause = time_limit(service.seconds), _FIRST_PAUSE
    try:
        async with limit:
            if moment and service.port is None and service.check is None:
                await asyncio.sleep(_MOMENT)
            while True:
                info = await process.info()
                if info.state is not ProcessState.RUNNING:
                    how = "was lost" if info.exit_code is None else f"ended with {info.exit_code}"
                    raise await _failed(box, service, process, f"{how} before it was ready")
                if await _is_ready(box, service):
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
    except TimeoutError:
        if not limit.expired():
            raise
    lacks = f"nothing listens on port {service.port}" if service.check is None else "its check does not end with 0"
    raise await _failed(box, service, process, f"was not ready within {service.seconds} s: {lacks}")


async def _is_ready(box: Box, service: Service) -> bool:
    if service.port is not None:
        try:
            async with await box.connect(service.port):
                return True
        except ConnectRefused:
            return False
    if service.check is not None:
        argv = ("/bin/sh", "-c", service.check)
        try:
            done = await box.exec(argv, env=service.environment, cwd=box.spec.workdir, timeout=_CHECK_SECONDS)
        except ExecTimeout:
            return False
        return done.ok
    return True


async def _failed(box: Box, service: Service, process: Process, how: str) -> LaunchFailed:
    output = await last_output(process)
    return LaunchFailed(
        "service_failed",
        f"service {service.name} {how}{output and chr(10)}{output}",
        f"correct services.{service.name} of the environment: its command has to stay in the foreground, and ready is a"
        f" port or a command; all of its output: holdfast box logs {box.id} {process.id}",
    )


async def _stop_all(processes: Sequence[Process]) -> None:
    for process in processes:
        await stop(process)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns one of the errors: a failed service, if there is one."""
    flat: list[BaseException] = []
    for each in group.exceptions:
        flat.append(_first(each) if isinstance(each, BaseExceptionGroup) else each)
    return next((each for each in flat if isinstance(each, LaunchFailed)), flat[0])
