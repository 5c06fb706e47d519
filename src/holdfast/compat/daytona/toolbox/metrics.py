"""What a sandbox uses: now, and at the moments when somebody asked before. Nothing is measured by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.compat.daytona.http.requests import answer, time_of
from holdfast.compat.daytona.recent import Recent
from holdfast.compat.daytona.sandbox_record import Sandbox, timestamp
from holdfast.compat.daytona.service import daytona_of
from holdfast.compat.daytona.toolbox.access import Opened, opened

_MOST: Final = 200
_GIGABYTE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Sample:
    at: int
    """UTC milliseconds."""
    cpu_seconds: float
    cpu_percent: float
    """Of the limit, since the sample before. 0 in the first."""
    memory: int
    disk: int


Samples = Recent[list[Sample]]
"""The samples of boxes, oldest first, by box."""


async def _sample(connection: HTTPConnection, at: Opened) -> Sample:
    found, now = await at.box.metrics(), at.parts.boxes.clock()
    samples: Samples = connection.app.state.samples
    earlier = samples.get(at.sandbox.row.id) or []
    used, percent = found.cpu_seconds or 0.0, 0.0
    if earlier and now > earlier[-1].at:
        share = (used - earlier[-1].cpu_seconds) / ((now - earlier[-1].at) / 1000) / at.sandbox.details.cpu
        percent = round(max(0.0, share) * 100, 2)
    sample = Sample(now, used, percent, found.memory or 0, found.disk or 0)
    samples.set(at.sandbox.row.id, [*earlier, sample][-_MOST:])
    return sample


async def latest(request: Request) -> Response:
    async with opened(request) as at:
        sample, details = await _sample(request, at), at.sandbox.details
    disk = details.disk * _GIGABYTE
    return answer(
        {
            "cpuCount": details.cpu,
            "cpuUsedPct": sample.cpu_percent,
            "diskTotal": disk,
            "diskUsed": sample.disk,
            "diskFree": max(0, disk - sample.disk),
            "memTotal": details.memory * _GIGABYTE,
            "memUsed": sample.memory,
            "memCache": 0,
            "timestamp": timestamp(sample.at),
            "timestampUnix": sample.at // 1000,
        }
    )


async def history(request: Request) -> Response:
    """The samples of a period. If it goes up to now, and the sandbox is started, that of now is among them."""
    parts, sandbox = await daytona_of(request).sandbox(request)
    now = parts.boxes.clock()
    begin, end = time_of(request, "from") or 0, time_of(request, "to") or now
    if sandbox.state == "started" and end >= now - 60_000:
        async with opened(request) as at:
            end = max(end, (await _sample(request, at)).at)
    samples: Samples = request.app.state.samples
    within = [each for each in samples.get(sandbox.row.id) or [] if begin <= each.at <= end]
    names = {name for text in request.query_params.getlist("metricNames") for name in text.split(",") if name}
    series = [
        {
            "metricName": name,
            "dataPoints": [{"timestamp": timestamp(each.at), "value": value} for each, value in points],
        }
        for name, points in _points(sandbox, within).items()
        if not names or name in names
    ]
    return answer({"series": series if within else []})


def _points(sandbox: Sandbox, samples: list[Sample]) -> dict[str, list[tuple[Sample, float]]]:
    details = sandbox.details
    values: dict[str, Any] = {
        "daytona.sandbox.cpu.utilization": lambda sample: sample.cpu_percent,
        "daytona.sandbox.cpu.limit": lambda _: details.cpu,
        "daytona.sandbox.memory.usage": lambda sample: sample.memory,
        "daytona.sandbox.memory.limit": lambda _: details.memory * _GIGABYTE,
        "daytona.sandbox.filesystem.usage": lambda sample: sample.disk,
        "daytona.sandbox.filesystem.total": lambda _: details.disk * _GIGABYTE,
    }
    return {name: [(each, value(each)) for each in samples] for name, value in values.items()}


def routes() -> list[Route]:
    return [Route("/system/metrics", latest, methods=["GET"])]
