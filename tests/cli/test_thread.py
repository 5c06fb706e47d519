"""`holdfast thread`, each command on a real server."""

from __future__ import annotations

import http.server
import json
import secrets
import signal
import threading

import pytest
from tests.cli.conftest import Cli, start

from holdfast import SyncClient
from holdfast.cli.exits import Exit
from holdfast.testing.server import ServerProcess


def chats(cli: Cli, thread: str) -> list[str]:
    entries = cli("thread", "entries", thread, "--type", "chat", "--json").lines()
    return [entry["payload"]["text"] for entry in entries]


@pytest.fixture
def thread(cli: Cli) -> str:
    return str(cli("thread", "new", "a title", "--json").json()["id"])


def test_new_prints_the_id_alone_in_a_pipe(cli: Cli) -> None:
    made = cli("thread", "new", "a title", "--label", "team:core")
    assert (made.exit, made.err) == (0, "")
    shown = cli("thread", "show", made.out.strip(), "--json").json()
    assert (shown["title"], shown["labels"], shown["status"]) == ("a title", {"team": "core"}, "idle")


def test_trace_sends_the_spans_of_runs_to_a_collector(cli: Cli, thread: str) -> None:
    assert "no runs" in cli("thread", "trace", thread).out
    for payload in (
        {"type": "signal.run.started", "run": "r-1", "agent": "pi"},
        {"type": "signal.run.box", "run": "r-1", "box": "b-1", "ms": 20},
        {"type": "signal.run.finished", "run": "r-1", "status": "completed"},
    ):
        assert cli("thread", "append", thread, "--payload", json.dumps(payload)).exit == 0
    received: list[tuple[str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        serving = threading.Thread(target=collector.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{collector.server_port}"
            shown = cli("thread", "trace", thread, "--send", f"{url}/v1/traces")
            refused = cli("thread", "trace", thread, "--send", f"{url}/elsewhere")
        finally:
            collector.shutdown()
            serving.join()
    assert [line.split()[0] for line in shown.out.splitlines()] == ["what", "run", "box"]
    path, body = received[0]
    spans = json.loads(body)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (path, [each["name"] for each in spans]) == ("/v1/traces", ["run", "box"])
    assert spans[1]["parentSpanId"] == spans[0]["spanId"]
    assert cli("thread", "trace", thread, "--json").json() == json.loads(body)
    assert (refused.exit, "404" in refused.err) == (Exit.UNREACHABLE, True)
    assert cli("thread", "trace", thread, "--send", "file:///etc/passwd").exit == Exit.USAGE


def test_new_takes_an_id_and_a_parent(cli: Cli, thread: str) -> None:
    id = f"t-{secrets.token_hex(8)}"
    child = cli("thread", "new", "--id", id, "--parent", thread, "--json").json()
    assert (child["id"], child["parent"]) == (id, thread)
    again = cli("thread", "new", "--id", id)
    assert (again.exit, again.out) == (Exit.CONFLICT, "")
    assert id in again.err


def test_show_and_list_for_people(cli: Cli, thread: str) -> None:
    cli("thread", "append", thread, "hello")
    shown = cli("thread", "show", thread).out
    assert f"  thread       {thread}  a title\n" in shown
    assert "  entries      2, the last one" in shown
    header, *rows = cli("thread", "list").out.splitlines()
    assert header.split() == ["id", "status", "entries", "active", "title"]
    [row] = [row for row in rows if row.startswith(thread)]
    assert row.endswith("a title")


def test_list_filters_and_pages(cli: Cli) -> None:
    group = secrets.token_hex(4)
    ids = [cli("thread", "new", "--label", f"group:{group}", "--json").json()["id"] for _ in range(3)]
    wanted = ("thread", "list", "--label", f"group:{group}", "--json")
    assert {each["id"] for each in cli(*wanted).json()["threads"]} == set(ids)
    first = cli(*wanted, "-n", "2").json()
    second = cli(*wanted, "-n", "2", "--cursor", first["nextCursor"]).json()
    assert len(first["threads"]) == 2
    assert {each["id"] for each in first["threads"] + second["threads"]} == set(ids)
    assert second["nextCursor"] is None
    assert cli(*wanted, "--status", "failed").json()["threads"] == []
    cli("thread", "archive", ids[0])
    assert {each["id"] for each in cli(*wanted).json()["threads"]} == set(ids[1:])
    assert {each["id"] for each in cli(*wanted, "--archived", "only").json()["threads"]} == {ids[0]}
    assert len(cli(*wanted, "--archived", "too").json()["threads"]) == 3
    more = cli("thread", "list", "--label", f"group:{group}", "-n", "1")
    assert "--cursor" in more.err
    nothing = cli("thread", "list", "--label", "group:none")
    assert (nothing.exit, "holdfast thread new" in nothing.out) == (0, True)


def test_append_a_text_a_payload_and_lines(cli: Cli, thread: str) -> None:
    said = cli("thread", "append", thread, "hello", "--author", "u-1", "--json").json()
    assert said["appended"] == 1
    cli("thread", "append", thread, "--payload", '{"tool": "bash"}', "--type", "pi.tool")
    cli("thread", "append", thread, "thinking", "--type", "pi.thought")
    lines = [
        '{"type": "chat", "text": "one"}',
        "",
        '{"id": "e-own", "ts": 5, "payload": {"type": "chat", "text": "two"}}',
    ]
    assert cli("thread", "append", thread, "-", stdin="\n".join(lines)).out == "  appended     2 entries\n"
    entries = cli("thread", "entries", thread, "--json").lines()[1:]
    assert entries[0] == {
        "id": said["ids"][0],
        "ts": entries[0]["ts"],
        "authorId": "u-1",
        "payload": {"type": "chat", "role": "user", "text": "hello"},
    }
    assert [entry["payload"] for entry in entries[1:]] == [
        {"tool": "bash", "type": "pi.tool"},
        {"type": "pi.thought", "text": "thinking"},
        {"type": "chat", "text": "one"},
        {"type": "chat", "text": "two"},
    ]
    assert (entries[-1]["id"], entries[-1]["ts"]) == ("e-own", 5)


def test_what_entries_prints_append_takes_and_twice_is_once(cli: Cli, thread: str) -> None:
    cli("thread", "append", thread, "-", stdin='{"type": "chat", "text": "a"}\n{"type": "chat", "text": "b"}\n')
    exported = cli("thread", "entries", thread, "--type", "chat", "--json").out
    copy = cli("thread", "new").out.strip()
    for _ in range(2):
        assert cli("thread", "append", copy, "-", stdin=exported).exit == 0
    assert cli("thread", "entries", copy, "--type", "chat", "--json").out == exported
    for _ in range(2):
        cli("thread", "append", copy, "said once", "--id", "e-once")
    assert chats(cli, copy) == ["a", "b", "said once"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"type": "ch', "is not JSON"),
        ("[1]", "is not an object"),
        ('{"text": "no type"}', "payload.type"),
        ('{"payload": {"type": "chat"}, "ts": "yesterday"}', "ts must be a time"),
    ],
)
def test_a_bad_line_is_named_and_those_before_it_are_kept(cli: Cli, thread: str, line: str, what: str) -> None:
    outcome = cli("thread", "append", thread, "-", stdin=f'{{"type": "chat", "text": "good"}}\n{line}\n')
    assert outcome.exit == Exit.USAGE
    assert "line 2 of standard input" in outcome.err
    assert what in outcome.err
    assert chats(cli, thread) == ["good"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "nothing to append"),
        (("text", "--payload", "{}"), "exclude each other"),
        (("--payload", "{"), "is not JSON"),
        (("--payload", "[]"), "is not an object"),
        (("--payload", "{}"), "payload.type"),
        (("-", "--id", "e-1"), "not for standard input"),
        (("text", "--retry-for", "soon"), "'soon' is not a duration"),
    ],
)
def test_what_cannot_be_appended_is_told(cli: Cli, thread: str, arguments: tuple[str, ...], what: str) -> None:
    outcome = cli("thread", "append", thread, *arguments)
    assert (outcome.exit, outcome.out) == (Exit.USAGE, "")
    assert what in outcome.err


def test_entries_for_people(cli: Cli, thread: str) -> None:
    cli("thread", "append", thread, "two\nlines")
    cli("thread", "append", thread, "--payload", '{"type": "pi.tool", "tool": "bash", "text": 5}')
    cli("thread", "append", thread, "drives \x1b[31m the terminal", "--type", "pi.text")
    _, first, second, third, fourth = cli("thread", "entries", thread).out.splitlines()
    assert first.endswith("  chat              user: two")
    assert second.strip() == "lines"
    assert second.index("lines") == first.index("user: two")
    assert third.endswith("  pi.tool           tool=bash  text=5")
    assert fourth.endswith("drives ␛[31m the terminal")


def test_entries_by_type_offset_and_number(cli: Cli, thread: str) -> None:
    offset = cli("thread", "append", thread, "one", "--json").json()["nextOffset"]
    cli("thread", "append", thread, "two")
    wanted = ("thread", "entries", thread, "--json")
    assert [each["payload"]["text"] for each in cli(*wanted, "--since", offset).lines()] == ["two"]
    assert [each["payload"]["text"] for each in cli(*wanted, "--type", "chat", "-n", "1").lines()] == ["one"]
    assert cli(*wanted, "--type", "pi.*").out == ""


def test_tail_prints_offsets_to_go_on_from(cli: Cli, thread: str) -> None:
    for text in ("one", "two", "three"):
        cli("thread", "append", thread, text)
    first, second = cli("thread", "tail", thread, "--type", "chat", "-n", "2", "--json").lines()
    assert [first["payload"]["text"], second["payload"]["text"]] == ["one", "two"]
    [next_one] = cli("thread", "tail", thread, "--since", first["offset"], "-n", "1", "--json").lines()
    assert next_one["id"] == second["id"]
    assert cli("thread", "tail", thread, "-n", "2").out.endswith("user: one\n")


def test_tail_follows_and_ctrl_c_says_how_to_come_back(cli: Cli, thread: str, server: ServerProcess) -> None:
    with start("thread", "tail", thread, "--home", str(server.home)) as tail:
        assert tail.stdout is not None
        assert "signal.thread.created" in tail.stdout.readline()
        offset = cli("thread", "append", thread, "live", "--json").json()["nextOffset"]
        assert tail.stdout.readline().endswith("user: live\n")
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=240)
    assert tail.returncode == Exit.INTERRUPTED
    assert out == ""
    assert err == (
        f"  stopped      no longer following thread {thread}\n"
        f"  next         holdfast thread tail --home {server.home} {thread} --since {offset}\n"
    )


def test_tail_ends_with_the_stream(cli: Cli, thread: str, server: ServerProcess) -> None:
    with SyncClient(server.url, api_key=server.api_key) as client:
        connection = client._async._connection
        client._loop.run(
            connection.ask("POST", f"/v1/stream/threads/{thread}", headers={"stream-closed": "true"}, body=None)
        )
    outcome = cli("thread", "tail", thread)
    assert outcome.exit == 0
    assert "is closed" in outcome.err
    refused = cli("thread", "append", thread, "too late")
    assert (refused.exit, "closed" in refused.err) == (Exit.CONFLICT, True)


def test_tail_into_a_pipe_that_closes_is_quiet(thread: str, server: ServerProcess, cli: Cli) -> None:
    long = "x" * 200  # all of them are more than a pipe holds: there is always something to write when it is closed
    cli("thread", "append", thread, "-", stdin=f'{{"type": "chat", "text": "{long}"}}\n' * 1000)
    with start("thread", "tail", thread, "--home", str(server.home)) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.stderr.read() == ""


def test_a_search_lists_threads_by_their_words(cli: Cli) -> None:
    thread = cli("thread", "new", "Sought by its unusual heading", "--json").json()["id"]
    found = cli("thread", "list", "--search", "HEADING unusual", "--json").json()["threads"]
    assert [each["id"] for each in found] == [thread]
    assert cli("thread", "list", "--search", "unusual nothing", "--json").json()["threads"] == []


def test_pin_and_unpin_keep_other_labels(cli: Cli) -> None:
    thread = cli("thread", "new", "Pinned", "--label", "team:web", "--json").json()["id"]
    assert cli("thread", "pin", thread, "--json").json()["labels"] == {"team": "web", "pinned": "true"}
    assert cli("thread", "pin", thread, "--undo", "--json").json()["labels"] == {"team": "web"}


def test_rename_archive_and_back(cli: Cli, thread: str) -> None:
    assert cli("thread", "rename", thread, "another", "--json").json()["title"] == "another"
    assert "--undo" in cli("thread", "archive", thread).out
    assert cli("thread", "archive", thread, "--undo", "--json").json()["archived"] is False


def test_delete_asks_or_is_told_not_to(cli: Cli, thread: str) -> None:
    unasked = cli("thread", "delete", thread)
    assert (unasked.exit, f"thread delete {thread} --yes" in unasked.err) == (Exit.USAGE, True)
    assert cli("thread", "show", thread).exit == 0
    assert cli("thread", "delete", thread, "--yes", "--json").json() == {"id": thread, "deleted": True}
    gone = cli("thread", "show", thread)
    assert (gone.exit, gone.out) == (Exit.NOT_FOUND, "")
    assert thread in gone.err
    assert "  next         " in gone.err
    assert cli("thread", "delete", thread, "--yes").exit == Exit.NOT_FOUND


def test_a_token_does_what_it_says(cli: Cli, bare_cli: Cli, thread: str, server: ServerProcess) -> None:
    token = cli("thread", "token", thread, "--ttl", "5m").out.strip()
    reading = ("--server", server.url, "--api-key", token)
    assert bare_cli("thread", "show", thread, *reading).exit == 0
    refused = bare_cli("thread", "append", thread, "hello", *reading)
    assert refused.exit == Exit.NOT_AUTHORISED
    assert "only read" in refused.err
    made = cli("thread", "token", thread, "--scope", "write", "--json").json()
    assert (made["thread"], made["scope"]) == (thread, "write")
    assert cli("thread", "token", thread, "--ttl", "forever").exit == Exit.USAGE


def test_errors_are_json_where_json_was_asked_for(cli: Cli) -> None:
    outcome = cli("thread", "show", "t-nowhere", "--json")
    assert (outcome.exit, outcome.out) == (Exit.NOT_FOUND, "")
    error = json.loads(outcome.err)["error"]
    assert (error["code"], error["exit"]) == ("not_found", 3)
    assert "t-nowhere" in error["message"]
