"""`holdfast box`: boxes made, listed, stopped, copied and ended, on a real server."""

from __future__ import annotations

import json
import secrets

import pytest
from tests.cli.conftest import Cli

from holdfast.cli.exits import Exit

COMMANDS = [
    "create", "list", "show", "exec", "shell", "cp", "logs", "port", "top", "stop", "start", "snapshot", "snapshots",
    "restore", "fork", "move", "delete", "ping", "diagnose", "prune",
]  # fmt: skip


def test_help_names_every_command(bare_cli: Cli) -> None:
    help = bare_cli("box", "--help").out
    for name in COMMANDS:
        assert f"\n  {name} " in help
        assert "--json" in bare_cli("box", name, "--help").out or name == "shell"


def test_create_prints_the_id_alone_in_a_pipe(box_cli: Cli) -> None:
    made = box_cli("box", "create", "--label", "team:core", "--thread", "t-1", "--environment", "ci")
    assert (made.exit, made.err) == (0, "")
    shown = box_cli("box", "show", made.out.strip(), "--json").json()
    assert (shown["state"], shown["provider"]) == ("running", "local")
    assert shown["labels"]["team"] == "core"
    assert (shown["owner"]["thread"], shown["owner"]["environment"]) == ("t-1", "ci")


def test_a_key_gives_the_same_box_until_the_spec_changes(box_cli: Cli) -> None:
    key = f"k-{secrets.token_hex(4)}"
    first = box_cli("box", "create", "--key", key)
    assert "created" in first.err
    again = box_cli("box", "create", "--key", key)
    assert again.out == first.out
    assert "  resumed " in again.err
    assert box_cli("box", "create", "--key", key, "-q").err == ""
    changed = box_cli("box", "create", "--key", key, "--env", "A=1")
    assert changed.out != first.out
    assert f"  replaced     {first.out.strip()}" in changed.err
    made = box_cli("box", "create", "--key", key, "--env", "A=1", "--json").json()
    assert (made["box"]["id"], made["how"]) == (changed.out.strip(), "resumed")


def test_values_of_variables_are_never_shown(box_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cret-value")
    id = box_cli("box", "create", "--env", "MY_SECRET", "--env", "PLAIN=other-value").out.strip()
    for outcome in (box_cli("box", "show", id), box_cli("box", "show", id, "--json"), box_cli("box", "list", "--json")):
        assert "MY_SECRET" in outcome.out
        assert "s3cret-value" not in outcome.out
        assert "other-value" not in outcome.out
    assert box_cli("box", "exec", id, "--", "sh", "-c", "echo $MY_SECRET $PLAIN").out == "s3cret-value other-value\n"


def test_list_shows_filters_and_tells_the_dead(box_cli: Cli) -> None:
    group = secrets.token_hex(4)
    ids = [box_cli("box", "create", "--label", f"group:{group}").out.strip() for _ in range(2)]
    wanted = ("box", "list", "--label", f"group:{group}")
    assert set(box_cli(*wanted, "-q").out.split()) == set(ids)
    header, *rows = box_cli(*wanted).out.splitlines()
    assert header.split()[:4] == ["id", "state", "provider", "age"]
    assert len(rows) == 2
    assert all(f"group:{group}" in row and " running " in row for row in rows)
    assert box_cli("box", "stop", ids[0]).exit == 0
    assert box_cli(*wanted, "--state", "stopped", "-q").out.split() == [ids[0]]
    assert box_cli("box", "delete", ids[0], "--yes").exit == 0
    assert box_cli(*wanted, "-q").out.split() == [ids[1]]
    assert set(box_cli(*wanted, "--all", "-q").out.split()) == set(ids)
    assert "deleted" in box_cli("box", "show", ids[0]).out
    nothing = box_cli("box", "list", "--label", "group:none")
    assert (nothing.exit, "holdfast box create" in nothing.out) == (0, True)


def test_a_box_answers_to_parts_of_its_id_and_to_its_key(box_cli: Cli, box: str) -> None:
    other = box_cli("box", "create", "--key", f"named-{box}").out.strip()
    assert box_cli("box", "show", box[-6:], "--json").json()["id"] == box
    assert box_cli("box", "show", f"named-{box}", "--json").json()["id"] == other
    ambiguous = box_cli("box", "show", box[:5])
    assert ambiguous.exit == Exit.USAGE
    assert "matches" in ambiguous.err
    for name in ("nowhere!", "", "b-", "b", box[-2:]):
        missing = box_cli("box", "delete", name, "--yes")
        assert missing.exit == Exit.NOT_FOUND
        assert "holdfast box list" in missing.err


def test_stop_keeps_files_and_start_goes_on(box_cli: Cli, box: str) -> None:
    box_cli("box", "exec", box, "--", "sh", "-c", "echo kept > file")
    assert box_cli("box", "stop", box).out == f"  stopped      {box}\n"
    refused = box_cli("box", "exec", box, "--", "cat", "file")
    assert refused.exit == Exit.NOT_RUN
    assert "stopped" in refused.err
    assert "holdfast box start" in refused.err
    assert box_cli("box", "start", box, "--json").json()["state"] == "running"
    assert box_cli("box", "exec", box, "--", "cat", "file").out == "kept\n"


def test_snapshots_are_kept_restored_and_forgotten(box_cli: Cli, box: str) -> None:
    box_cli("box", "exec", box, "--", "sh", "-c", "echo then > file")
    snapshot = box_cli("box", "snapshot", box).out.strip()
    box_cli("box", "exec", box, "--", "sh", "-c", "echo now > file")
    restored = box_cli("box", "restore", snapshot).out.strip()
    forked = box_cli("box", "fork", box, "-q").out.strip()
    assert box_cli("box", "exec", restored, "--", "cat", "file").out == "then\n"
    assert box_cli("box", "exec", forked, "--", "cat", "file").out == "now\n"
    assert box_cli("box", "snapshots", box, "-q").out.split() == [snapshot]
    [listed] = box_cli("box", "snapshots", box, "--json").json()["snapshots"]
    assert (listed["id"], listed["box"]) == (snapshot, box)
    assert snapshot in box_cli("box", "snapshots").out
    box_cli("box", "delete", restored, "--yes")
    assert snapshot in box_cli("box", "snapshots", "--delete", snapshot, "--yes").out
    missing = box_cli("box", "restore", snapshot)
    assert (missing.exit, snapshot in missing.err) == (Exit.NOT_FOUND, True)


def test_delete_asks_or_is_told_not_to_and_says_what_it_freed(box_cli: Cli, box: str) -> None:
    other = box_cli("box", "create").out.strip()
    unasked = box_cli("box", "delete", box, other)
    assert unasked.exit == Exit.USAGE
    assert f"holdfast box delete {box} {other} --yes" in unasked.err
    deleted = box_cli("box", "delete", box, "b-nowhere", other, "--yes", "--json")
    assert deleted.exit == Exit.NOT_FOUND
    assert [json.loads(line)["id"] for line in deleted.out.splitlines()] == [box, other]
    assert all(json.loads(line)["freed"] >= 0 for line in deleted.out.splitlines())
    assert "b-nowhere" in json.loads(deleted.err)["error"]["message"]


def test_ping_times_every_step(box_cli: Cli, box: str) -> None:
    told = box_cli("box", "ping", box, "--json").json()
    assert told["ok"]
    assert len(told["steps"]) >= 2
    lines = box_cli("box", "ping", box).out.splitlines()
    assert len({line.index(" ms") for line in lines}) == 1
    assert all(line.startswith("  ✓ ") for line in lines)


def test_diagnose_says_what_works(box_cli: Cli, box: str) -> None:
    for arguments in ((), (box,)):
        outcome = box_cli("box", "diagnose", *arguments)
        assert outcome.out.lstrip().startswith(("✓", "✗"))
        assert outcome.exit == (Exit.FAILURE if "✗" in outcome.out else Exit.OK)


def test_diagnose_of_a_stopped_box_fails_and_says_what_to_do(box_cli: Cli, box: str) -> None:
    box_cli("box", "stop", box)
    outcome = box_cli("box", "diagnose", box)
    assert outcome.exit == Exit.FAILURE
    assert "✗" in outcome.out
    assert "next: " in outcome.out


def test_prune_ends_what_is_idle_and_leaves_the_rest(box_cli: Cli, box: str) -> None:
    idle = box_cli("box", "create", "--idle", "1h").out.strip()
    assert box_cli("box", "stop", idle).exit == 0
    assert box_cli("box", "prune").exit == Exit.USAGE
    pruned = box_cli("box", "prune", "--yes", "--json").json()
    removed = [each["id"] for each in pruned["removed"]]
    assert idle in removed
    assert box not in removed
    assert pruned["freed"] >= 0
    assert box_cli("box", "show", box, "--json").json()["state"] == "running"
    assert box_cli("box", "prune", "--yes").exit == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("create", "--memory", "lots"), "'lots' is not a size"),
        (("create", "--memory", "1K"), "at least 16 MB"),
        (("create", "--env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE is not set in your environment"),
        (("create", "--volume", "cache"), "is not a mount"),
        (("create", "--idle", "soon"), "'soon' is not a duration"),
        (("create", "--ephemeral", "--one-shot"), "one lifetime"),
        (("create", "--provider", "nowhere"), "nowhere"),
        (("list", "--state", "asleep"), "asleep"),
        (("port", "b-1", "80", "90"), "LOCALPORT 90 needs --forward"),
        (("cp", "here", "there"), "must be in a box"),
    ],
)
def test_mistakes_are_explained(box_cli: Cli, arguments: tuple[str, ...], what: str) -> None:
    outcome = box_cli("box", *arguments)
    assert (outcome.exit, outcome.out) == (Exit.USAGE, "")
    assert what in outcome.err


def test_volumes_are_made_mounted_and_deleted(box_cli: Cli) -> None:
    name = f"v-{secrets.token_hex(4)}"
    assert box_cli("volume", "create", name).out == f"{name}\n"
    again = box_cli("volume", "create", name)
    assert (again.exit, name in again.err) == (Exit.CONFLICT, True)
    first = box_cli("box", "create", "--volume", f"{name}/sub:/data").out.strip()
    second = box_cli("box", "create", "--volume", f"{name}:/all:ro").out.strip()
    assert box_cli("box", "exec", first, "--", "sh", "-c", "echo shared > /data/file").exit == 0
    assert box_cli("box", "exec", second, "--", "cat", "/all/sub/file").out == "shared\n"
    assert box_cli("box", "exec", second, "--", "touch", "/all/x").exit != 0
    assert f"volume       {name}/sub at /data" in box_cli("box", "show", first).out
    assert name in box_cli("volume", "list").out
    used = box_cli("volume", "delete", name, "--yes")
    assert (used.exit, name in used.err) == (Exit.CONFLICT, True)
    assert box_cli("volume", "delete", name).exit == Exit.USAGE
    box_cli("box", "delete", first, second, "--yes")
    assert box_cli("volume", "delete", name, "--yes", "--json").json()["deleted"]
    assert name not in box_cli("volume", "list", "-q").out.split()
    assert box_cli("volume", "delete", name, "--yes").exit == Exit.NOT_FOUND
