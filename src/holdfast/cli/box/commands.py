"""`holdfast box create`, `list` and `show`. The other commands of boxes are in the modules beside this one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from holdfast.api.box.records import OWNER_ENVIRONMENT, OWNER_THREAD, RESERVED, BoxState, Owner
from holdfast.cli.box.options import BoxOptions
from holdfast.cli.box.spec import parse_box_labels, parse_env, parse_mount, parse_volume, read_env_file
from holdfast.cli.errors import read_value, usage_error
from holdfast.cli.names import BoxArgument, find_box
from holdfast.cli.network_options import (
    describe_policy,
    parse_policy,
)
from holdfast.cli.options import JsonOption, LabelsOption, LimitOption, QuietOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import ask, ask_blocking
from holdfast.cli.terminal.console import (
    Cell,
    hint,
    is_terminal,
    note,
    write_field,
    write_json,
    write_line,
    write_table,
)
from holdfast.cli.terminal.durations import describe_duration, parse_duration
from holdfast.cli.terminal.sizes import describe_size, parse_size

if TYPE_CHECKING:
    from holdfast.api.box.records import BoxRecord, MadeBox
    from holdfast.api.box.spec import BoxSpec
    from holdfast.boxes import Metrics
    from holdfast.client import Client

LifetimeName = Literal["shared", "ephemeral", "one-shot"]

OnIdleName = Literal["keep", "pause", "hibernate", "delete"]

_STATE_STYLES: Final = {
    "running": "green",
    "paused": "cyan",
    "hibernated": "blue",
    "stopped": "dim",
    "deleted": "dim",
    "gone": "red",
}
_TRANSITION_STYLE: Final = "yellow"


def create(
    key: Annotated[
        str | None,
        Option(metavar="KEY", help="Use the box with this key: resume it, restore it from a snapshot, or create it."),
    ] = None,
    env: Annotated[
        list[str] | None,
        Option("--env", "-e", metavar="NAME[=VALUE]", help="Set a variable. NAME alone passes on your own value."),
    ] = None,
    env_file: Annotated[
        list[Path] | None, Option(metavar="FILE", help="Read variables from a file, one NAME=VALUE per line.")
    ] = None,
    workdir: Annotated[
        str | None, Option(metavar="PATH", help="Folder in which commands start. Default: /workspace.")
    ] = None,
    volume: Annotated[
        list[str] | None,
        Option("--volume", "-v", metavar="NAME[/SUB]:PATH[:ro]", help="Mount a volume, or a folder in it."),
    ] = None,
    mount: Annotated[
        list[str] | None,
        Option(metavar="HOSTPATH:PATH[:rw]", help="Mount a path on the server's machine, read-only without :rw."),
    ] = None,
    lifetime: Annotated[
        LifetimeName | None, Option(help="When the box is deleted automatically. A shared box never is.")
    ] = None,
    ephemeral: Annotated[bool, Option("--ephemeral", help="Delete it once it is idle: --lifetime ephemeral.")] = False,
    one_shot: Annotated[
        bool, Option("--one-shot", help="Delete it after its first work: --lifetime one-shot.")
    ] = False,
    idle: Annotated[
        str | None,
        Option(metavar="DURATION", help="Idle time before --on-idle applies: 90s, 10m. Alone it implies --ephemeral."),
    ] = None,
    on_idle: Annotated[
        OnIdleName | None,
        Option(help="What happens when the box is idle. A sleeping box wakes at the next request."),
    ] = None,
    label: LabelsOption = None,
    thread: Annotated[str | None, Option(metavar="ID", help="Thread that the box serves.")] = None,
    environment: Annotated[str | None, Option(metavar="NAME", help="Environment that the box serves.")] = None,
    quiet: QuietOption = False,
    *,
    box: BoxOptions,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create a box and start it. In a pipe, print only its id.

    With --key, the same call always returns the same box: the existing one, or one restored from the key's latest
    snapshot, or a new one. A box with other settings, such as another memory limit, is replaced, and a note says so.

    \b
    holdfast box create --memory 2G --cpu 2
    holdfast box create --key build --volume cache:/home/box/.cache --env TOKEN
    holdfast box create --ephemeral --idle 10m --mount .:/workspace/project:rw
    holdfast box create --key work --on-idle hibernate --idle 10m
    """
    from holdfast.api.box.spec import WORKSPACE, BoxSpec, Lifetime, OnIdle
    from holdfast.api.errors.boxes import InvalidSpec

    chosen = choose_lifetime(lifetime, ephemeral=ephemeral, one_shot=one_shot, idle=idle, on_idle=on_idle)
    variables: dict[str, str] = {}
    for path in env_file or []:
        variables |= read_env_file(path, os.environ)
    variables |= parse_env(env or [], os.environ)
    policy = parse_policy(box.network, box.allow, box.bandwidth, box.connections, box.secret)
    try:
        spec = BoxSpec(
            provider=box.provider or "local",
            image=box.image,
            cpu=box.cpu,
            memory=read_value(parse_size, box.memory),
            disk=read_value(parse_size, box.disk),
            pids=box.pids,
            env=variables,
            workdir=WORKSPACE if workdir is None else workdir,
            volumes=tuple(parse_volume(text) for text in volume or []),
            mounts=tuple(parse_mount(text) for text in mount or []),
            network=policy,
            lifetime=Lifetime(chosen),
            idle_seconds=read_value(parse_duration, idle),
            on_idle=None if on_idle is None else OnIdle(on_idle),
            labels=parse_box_labels(label or []),
        )
    except InvalidSpec as error:
        raise usage_error(error.message, error.hint) from None
    owner = Owner(thread=thread, environment=environment)

    async def work(client: Client) -> tuple[MadeBox, float]:
        began = time.monotonic()
        made = await client.boxes.create(spec, key=key, owner=owner)
        return made, (time.monotonic() - began) * 1000

    made, milliseconds = ask_blocking(where, work)
    if as_json:
        write_json(made.to_json())
    elif quiet:
        write_line(made.box.id)
    else:
        _print_created(made, milliseconds, keyed=key is not None)


def choose_lifetime(
    lifetime: LifetimeName | None,
    *,
    ephemeral: bool,
    one_shot: bool,
    idle: str | None,
    on_idle: OnIdleName | None = None,
) -> str:
    """Return the lifetime that the options mean together. Raises `CommandError` if they contradict each other."""
    asked = {lifetime, "ephemeral" if ephemeral else None, "one-shot" if one_shot else None} - {None}
    if idle is not None and on_idle is None and not asked:
        return "ephemeral"
    if len(asked) > 1:
        raise usage_error(f"a box has only one lifetime, not both {' and '.join(sorted(str(each) for each in asked))}")
    [chosen] = asked or {"shared"}
    if idle is not None and on_idle is None and chosen != "ephemeral":
        raise usage_error(
            f"--idle is only for ephemeral boxes, and this one is {chosen}",
            "choose what happens when it is idle with --on-idle, or leave out --idle",
        )
    if idle is not None and on_idle == "keep":
        raise usage_error("--idle has no effect with --on-idle keep", "leave out --idle")
    if on_idle is not None and chosen == "one-shot":
        raise usage_error("a one-shot box is deleted after its work, so --on-idle has no effect", "leave out --on-idle")
    return str(chosen)


def _print_created(made: MadeBox, milliseconds: float, *, keyed: bool) -> None:
    box = made.box
    how = describe_how(made) if keyed else None
    if not is_terminal():
        if how is not None:
            note(*how)
        write_line(box.id)
        return
    write_field("box", Cell(box.id, "bold"), f"  {describe_kind(box)}", Cell(f"  {milliseconds:.0f} ms", "dim"))
    if how is not None:
        write_field(*how)
    write_field("next", hint(f"holdfast box shell {box.id}"))


def describe_kind(row: BoxRecord) -> str:
    """Describe the machine in a few words: provider, image, limits, network."""
    network = "no network" if row.spec.network.mode == "none" else f"network {row.spec.network.mode}"
    limits = describe_limits(row.spec.to_spec())
    return ", ".join(part for part in (row.provider, row.spec.image, limits, network) if part)


def describe_how(made: MadeBox) -> tuple[str, str]:
    """Return how the box of a key was acquired, as a label and a text."""
    why = f" ({made.why})" if made.why else ""
    if made.replaced is not None:
        return "replaced", f"{made.replaced}{why}"
    if made.how == "restored":
        return "restored", f"from snapshot {made.box.snapshot}" if made.box.snapshot else f"from its snapshot{why}"
    if made.how == "resumed":
        return "resumed", f"the box of this key{why}"
    return "created", f"the first box of this key{why}"


def list_(
    all: Annotated[bool, Option("--all", "-a", help="Include boxes that were deleted or are gone.")] = False,
    state: Annotated[list[BoxState] | None, Option(help="Only boxes in this state.")] = None,
    label: Annotated[
        list[str] | None, Option("--label", metavar="NAME:VALUE", help="Only boxes with this label.")
    ] = None,
    key: Annotated[str | None, Option(metavar="KEY", help="Only boxes of this key.")] = None,
    thread: Annotated[str | None, Option(metavar="ID", help="Only boxes that serve this thread.")] = None,
    environment: Annotated[str | None, Option(metavar="NAME", help="Only boxes that serve this environment.")] = None,
    limit: LimitOption = 200,
    quiet: QuietOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List boxes, newest first."""
    labels = parse_box_labels(label or [])
    if thread is not None:
        labels[OWNER_THREAD] = thread
    if environment is not None:
        labels[OWNER_ENVIRONMENT] = environment

    async def work(client: Client) -> list[BoxRecord]:
        found = client.boxes.list(states=state or (), labels=labels, key=key, all=all, limit=limit)
        return [row async for row in found]

    rows = ask_blocking(where, work)
    if as_json:
        write_json({"boxes": [row.to_json() for row in rows]})
    elif quiet:
        for row in rows:
            write_line(row.id)
    elif not rows:
        write_field("no boxes", hint("create one with holdfast box create"))
    else:
        write_table(*box_table(rows, time.time()))
        if len(rows) == limit:
            note("more", hint(f"there may be more than these {limit}: holdfast box list --limit {limit * 10}"))


def box_table(rows: list[BoxRecord], now: float) -> tuple[list[str], list[list[Cell | str]]]:
    """Return columns and rows. A column that is empty for all these boxes is left out."""
    columns = ["id", "state", "provider", "age", "thread", "environment", "key", "labels"]
    table: list[list[Cell | str]] = [
        [
            Cell(row.id, "bold"),
            state_cell(row.state),
            row.provider,
            describe_duration(now - row.created_at / 1000),
            row.owner.thread or "",
            row.owner.environment or "",
            row.key or "",
            "  ".join(f"{name}:{value}" for name, value in own_labels(row).items()),
        ]
        for row in rows
    ]
    used = [number for number in range(len(columns)) if any(row[number] for row in table)]
    return [columns[number] for number in used], [[row[number] for number in used] for row in table]


def state_cell(state: str) -> Cell:
    return Cell(state, _STATE_STYLES.get(state, _TRANSITION_STYLE))


def own_labels(row: BoxRecord) -> dict[str, str]:
    """The labels that users gave it. Ours have columns of their own."""
    return {name: value for name, value in row.labels.items() if not name.startswith(RESERVED)}


def show(
    box: BoxArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show a box. Only the names of its variables are shown, because their values may be secrets."""

    async def work(client: Client) -> tuple[BoxRecord, Metrics | None]:
        row = await find_box(client, box)
        if row.state not in ("running", "paused"):
            return row, None
        async with await client.boxes.open(row.id) as handle:
            return row, await handle.metrics()

    row, metrics = ask(where, work)
    if as_json:
        write_json(row.to_json())
        return
    for name, value in describe_box(row, time.time()):
        write_field(name, value)
    if metrics is not None:
        write_field("uses", describe_use(metrics))
    if is_terminal() and row.state == "running":
        write_field("next", hint(f"holdfast box shell {row.id}"))


def describe_box(row: BoxRecord, now: float) -> list[tuple[str, Cell | str]]:
    """Return the label and value of each line. Settings that were not given have no line."""
    from holdfast.calendar_time import calendar_time

    spec = row.spec
    created = calendar_time(row.created_at)
    lines: list[tuple[str, Cell | str]] = [("box", Cell(row.id, "bold")), ("state", state_cell(row.state))]
    if row.ended_at is not None:
        ago = describe_duration(now - row.ended_at / 1000)
        lines.append(("ended", f"{ago} ago" + (f": {row.ended_why}" if row.ended_why else "")))
    lines.append(("provider", row.provider + (f", image {spec.image}" if spec.image else "")))
    lines.append(("created", f"{created:%Y-%m-%d %H:%M:%S}, {describe_duration(now - row.created_at / 1000)} ago"))
    lines.append(("lifetime", f"{spec.lifetime}{describe_idle(spec.to_spec())}"))
    if limits := describe_limits(spec.to_spec()):
        lines.append(("limits", limits))
    lines.append(("network", describe_policy(spec.network)))
    lines.append(("workdir", spec.workdir))
    for volume in spec.volumes:
        source = f"{volume.volume}/{volume.subpath}" if volume.subpath else volume.volume
        lines.append(("volume", f"{source} at {volume.path}" + (", read-only" if volume.read_only else "")))
    for mount in spec.mounts:
        lines.append(("mount", f"{mount.source} at {mount.path}" + (", read-only" if mount.read_only else "")))
    lines += [
        (name, value)
        for name, value in (
            ("env", "  ".join(sorted(spec.env))),
            ("key", row.key),
            ("thread", row.owner.thread),
            ("environment", row.owner.environment),
            ("labels", "  ".join(f"{name}:{value}" for name, value in own_labels(row).items())),
            ("snapshot", row.snapshot),
            ("freed", describe_size(row.freed) if row.freed else None),
        )
        if value
    ]
    return lines


def describe_idle(spec: BoxSpec) -> str:
    """Describe what happens to the box when it is idle, if that was set."""
    if spec.idle_seconds is None and spec.on_idle is None:
        return ""
    what = {"keep": "", "pause": "pauses", "hibernate": "hibernates", "delete": "is deleted"}[spec.when_idle]
    when = "when idle" if spec.idle_seconds is None else f"after {describe_duration(spec.idle_seconds)} idle"
    return f", {what} {when}" if what else ""


def describe_limits(spec: BoxSpec) -> str:
    limits = (
        None if spec.cpu is None else f"{spec.cpu:g} cores",
        None if spec.memory is None else f"{describe_size(spec.memory)} memory",
        None if spec.disk is None else f"{describe_size(spec.disk)} disk",
        None if spec.pids is None else f"{spec.pids} processes",
    )
    return ", ".join(limit for limit in limits if limit)


def describe_use(metrics: Metrics) -> str:
    parts = [f"{metrics.processes} process{'' if metrics.processes == 1 else 'es'}"]
    if metrics.memory is not None:
        parts.append(f"{describe_size(metrics.memory)} memory")
    if metrics.disk is not None:
        parts.append(f"{describe_size(metrics.disk)} disk")
    if metrics.cpu_seconds is not None:
        parts.append(f"{metrics.cpu_seconds:.1f} s cpu")
    if metrics.out_of_memory:
        parts.append(f"ran out of memory {metrics.out_of_memory} time{'' if metrics.out_of_memory == 1 else 's'}")
    if metrics.idle_seconds >= 1:
        parts.append(f"idle for {describe_duration(metrics.idle_seconds)}")
    return ", ".join(parts)
