"""`holdfast box`: make boxes, look at them, and end them. What happens inside of them is in the modules beside."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from holdfast.api.box.records import OWNER_ENVIRONMENT, OWNER_THREAD, RESERVED, BoxState, Owner
from holdfast.cli.box.spec import (
    parse_box_labels,
    parse_env,
    parse_mount,
    parse_volume,
    read_env_file,
    read_value,
    wrong,
)
from holdfast.cli.network_options import (
    AllowOption,
    BandwidthOption,
    ConnectionsOption,
    NetworkName,
    describe_policy,
    parse_policy,
)
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parameters import Option
from holdfast.cli.session import BoxArgument, ask, ask_blocking, find_box
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

STYLES: Final = {
    "running": "green",
    "paused": "cyan",
    "hibernated": "blue",
    "stopped": "dim",
    "deleted": "dim",
    "gone": "red",
}
_BETWEEN: Final = "yellow"

QuietOption = Annotated[bool, Option("--quiet", "-q", help="Print only ids.")]


def create(
    key: Annotated[
        str | None,
        Option(metavar="KEY", help="Take the box of this key if there is one: resume, restore, or create."),
    ] = None,
    image: Annotated[str | None, Option(metavar="IMAGE", help="Image to start from; else the provider's.")] = None,
    cpu: Annotated[float | None, Option(metavar="CORES", help="Cores, say 0.5 or 2.")] = None,
    memory: Annotated[str | None, Option(metavar="SIZE", help="Memory: 512M, 2G.")] = None,
    disk: Annotated[str | None, Option(metavar="SIZE", help="What it may have on disk: 10G.")] = None,
    pids: Annotated[int | None, Option(metavar="COUNT", help="Processes and threads at once.")] = None,
    env: Annotated[
        list[str] | None,
        Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable; NAME alone takes your own value."),
    ] = None,
    env_file: Annotated[
        list[Path] | None, Option(metavar="FILE", help="Variables from a file, one NAME=VALUE per line.")
    ] = None,
    workdir: Annotated[str | None, Option(metavar="PATH", help="Where commands begin; else /workspace.")] = None,
    volume: Annotated[
        list[str] | None,
        Option("--volume", "-v", metavar="NAME[/SUB]:PATH[:ro]", help="Mount a volume, or a folder of it."),
    ] = None,
    mount: Annotated[
        list[str] | None,
        Option(metavar="HOSTPATH:PATH[:rw]", help="Mount a path of the server's machine, read-only unless :rw."),
    ] = None,
    network: Annotated[NetworkName | None, Option(help="What it may reach; else none, only itself.")] = None,
    allow: AllowOption = None,
    bandwidth: BandwidthOption = None,
    connections: ConnectionsOption = None,
    lifetime: Annotated[LifetimeName | None, Option(help="When it ends by itself; shared never does.")] = None,
    ephemeral: Annotated[bool, Option("--ephemeral", help="Ends once idle: --lifetime ephemeral.")] = False,
    one_shot: Annotated[bool, Option("--one-shot", help="Ends after its first work: --lifetime one-shot.")] = False,
    idle: Annotated[
        str | None,
        Option(
            metavar="DURATION", help="How long idle before --on-idle happens: 90s, 10m. Alone it means --ephemeral."
        ),
    ] = None,
    on_idle: Annotated[
        OnIdleName | None,
        Option(help="What happens when it is idle. Asleep, it wakes with the next request."),
    ] = None,
    label: Annotated[
        list[str] | None, Option("--label", metavar="NAME:VALUE", help="A label; may be given several times.")
    ] = None,
    provider: Annotated[str, Option(metavar="NAME", help="What kind of box.")] = "local",
    thread: Annotated[str | None, Option(metavar="ID", help="The thread that it serves.")] = None,
    environment: Annotated[str | None, Option(metavar="NAME", help="The environment that it serves.")] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the id.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Make a box, and start it. In a pipe, only its id is printed.

    With --key the same call always gives the same box: the one there is, else one from the key's latest snapshot, else
    a new one. A box that was asked for differently (another memory, say) is replaced, and you are told.

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
    policy = parse_policy(network, allow, bandwidth, connections)
    try:
        spec = BoxSpec(
            provider=provider,
            image=image,
            cpu=cpu,
            memory=None if memory is None else read_value(parse_size, memory),
            disk=None if disk is None else read_value(parse_size, disk),
            pids=pids,
            env=variables,
            workdir=WORKSPACE if workdir is None else workdir,
            volumes=tuple(parse_volume(text) for text in volume or []),
            mounts=tuple(parse_mount(text) for text in mount or []),
            network=policy,
            lifetime=Lifetime(chosen),
            idle_seconds=None if idle is None else read_value(parse_duration, idle),
            on_idle=None if on_idle is None else OnIdle(on_idle),
            labels=parse_box_labels(label or []),
        )
    except InvalidSpec as error:
        raise wrong(error.message, error.hint) from None
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
        _introduce(made, milliseconds, keyed=key is not None)


def choose_lifetime(
    lifetime: LifetimeName | None,
    *,
    ephemeral: bool,
    one_shot: bool,
    idle: str | None,
    on_idle: OnIdleName | None = None,
) -> str:
    """`--ephemeral`, `--one-shot` and `--idle` are short for a lifetime; two that differ make no sense."""
    asked = {lifetime, "ephemeral" if ephemeral else None, "one-shot" if one_shot else None} - {None}
    if idle is not None and on_idle is None and not asked:
        return "ephemeral"
    if len(asked) > 1:
        raise wrong(f"a box has one lifetime, not {' and '.join(sorted(str(each) for each in asked))}")
    [chosen] = asked or {"shared"}
    if idle is not None and on_idle is None and chosen != "ephemeral":
        raise wrong(
            f"--idle is for ephemeral boxes, and this one is to be {chosen}",
            "say what happens then, with --on-idle, or leave out --idle",
        )
    if idle is not None and on_idle == "keep":
        raise wrong("--idle is for when something happens then, and this box is to be kept", "leave out --idle")
    if on_idle is not None and chosen == "one-shot":
        raise wrong("a one-shot ends with its work, whatever --on-idle says", "leave out --on-idle")
    return str(chosen)


def _introduce(made: MadeBox, milliseconds: float, *, keyed: bool) -> None:
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
    """What kind of machine it is, in a few words."""
    network = "no network" if row.spec.network.mode == "none" else f"network {row.spec.network.mode}"
    limits = describe_limits(row.spec.to_spec())
    return ", ".join(part for part in (row.provider, row.spec.image, limits, network) if part)


def describe_how(made: MadeBox) -> tuple[str, str]:
    """How a box came by its key, as a label and what there is to say."""
    why = f" ({made.why})" if made.why else ""
    if made.replaced is not None:
        return "replaced", f"{made.replaced}{why}"
    if made.how == "restored":
        return "restored", f"from snapshot {made.box.snapshot}" if made.box.snapshot else f"from its snapshot{why}"
    if made.how == "resumed":
        return "resumed", f"the box of this key{why}"
    return "created", f"the first box of this key{why}"


def list_(
    all: Annotated[bool, Option("--all", "-a", help="Those that have ended, too.")] = False,
    state: Annotated[list[BoxState] | None, Option(help="Only boxes in this state.")] = None,
    label: Annotated[
        list[str] | None, Option("--label", metavar="NAME:VALUE", help="Only boxes with this label.")
    ] = None,
    key: Annotated[str | None, Option(metavar="KEY", help="Only boxes of this key.")] = None,
    thread: Annotated[str | None, Option(metavar="ID", help="Only boxes that serve this thread.")] = None,
    environment: Annotated[str | None, Option(metavar="NAME", help="Only boxes that serve this environment.")] = None,
    limit: Annotated[int, Option("--limit", "-n", min=1, help="At most so many.")] = 200,
    quiet: QuietOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List boxes, the newest first."""
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
        write_field("no boxes", hint("holdfast box create makes one"))
    else:
        write_table(*box_table(rows, time.time()))
        if len(rows) == limit:
            note("more", hint(f"there may be more than these {limit}: holdfast box list --limit {limit * 10}"))


def box_table(rows: list[BoxRecord], now: float) -> tuple[list[str], list[list[Cell | str]]]:
    """Columns that say nothing about any of these boxes are left out."""
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
    said = [number for number in range(len(columns)) if any(row[number] for row in table)]
    return [columns[number] for number in said], [[row[number] for number in said] for row in table]


def state_cell(state: str) -> Cell:
    return Cell(state, STYLES.get(state, _BETWEEN))


def own_labels(row: BoxRecord) -> dict[str, str]:
    """Without those that are ours: they have columns of their own."""
    return {name: value for name, value in row.labels.items() if not name.startswith(RESERVED)}


def show(
    box: BoxArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show what is known of a box. Of its variables only the names: their values may be secrets."""

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
    """Label and value of each line; what was not asked for has no line."""
    from datetime import UTC, datetime

    spec = row.spec
    created = datetime.fromtimestamp(row.created_at / 1000, UTC).astimezone()
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
    """What becomes of a box when it is idle, where something was asked for."""
    if spec.idle_seconds is None and spec.on_idle is None:
        return ""
    what = {"keep": "", "pause": "pauses", "hibernate": "hibernates", "delete": "ends"}[spec.when_idle]
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
        parts.append(f"ran out of memory {metrics.out_of_memory} times")
    if metrics.idle_seconds >= 1:
        parts.append(f"idle for {describe_duration(metrics.idle_seconds)}")
    return ", ".join(parts)
