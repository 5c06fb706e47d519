"""`holdfast box exec` and `logs`: streams, exit codes and signals, each in a process of its own as a script has it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time

import pytest
from tests.cli.conftest import BoxCli, Cli

from holdfast.cli.exits import Exit


def test_output_errors_and_exit_code_are_the_commands(box_cli: Cli, boxes: BoxCli, box: str) -> None:
    done = boxes.run("exec", box, "--", "sh", "-c", "echo out; echo err >&2; exit 42")
    assert (done.returncode, done.stdout, done.stderr) == (42, b"out\n", b"err\n")
    assert box_cli("box", "exec", box, "true").exit == 0
    assert box_cli("box", "exec", box, "sh", "-c", "kill -TERM $$").exit == 128 + signal.SIGTERM


def test_options_of_the_command_are_the_commands(box_cli: Cli, box: str) -> None:
    assert box_cli("box", "exec", box, "echo", "--json", "-t").out == "--json -t\n"
    ours = box_cli("box", "exec", "--cwd", "/tmp", box, "--env", "A=b c", "--", "sh", "-c", "pwd; echo $A")
    assert ours.out == "/tmp\nb c\n"


def test_bytes_come_out_as_they_are(boxes: BoxCli, box: str) -> None:
    program = "import os; os.write(1, bytes(range(256)) * 4096)"
    done = boxes.run("exec", box, "--", "python3", "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bytes(range(256)) * 4096


def test_what_is_piped_in_arrives_whole(boxes: BoxCli, box: str) -> None:
    data = os.urandom(3 << 20)
    done = boxes.run("exec", box, "--", "sha256sum", stdin=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert boxes.run("exec", box, "--", "cat", stdin=data).stdout == data
    assert boxes.run("exec", "--no-stdin", box, "--", "cat", stdin=b"not read").stdout == b""


def test_a_command_answers_while_its_input_is_still_open(boxes: BoxCli, box: str) -> None:
    with boxes.start("exec", box, "--", "cat") as talking:
        assert talking.stdin is not None
        assert talking.stdout is not None
        for line in (b"one\n", b"two\n"):
            talking.stdin.write(line)
            talking.stdin.flush()
            assert talking.stdout.readline() == line
        out, err = talking.communicate(timeout=240)
    assert (talking.returncode, out, err) == (0, b"", b"")


def test_a_command_that_reads_nothing_ends_all_the_same(boxes: BoxCli, box: str) -> None:
    with boxes.start("exec", box, "--", "true") as deaf:  # its input stays open
        assert deaf.wait(timeout=240) == 0


def test_failures_of_ours_differ_from_those_of_commands(box_cli: Cli, box: str) -> None:
    missing = box_cli("box", "exec", box, "--", "no-such-command")
    assert (missing.exit, "no-such-command" in missing.err) == (Exit.NO_SUCH_COMMAND, True)
    assert box_cli("box", "exec", box, "--", "/etc/passwd").exit == Exit.CANNOT_EXECUTE
    assert box_cli("box", "exec", box, "--cwd", "/nowhere", "--", "true").exit == Exit.CANNOT_EXECUTE
    slow = box_cli("box", "exec", box, "--timeout", "1s", "--", "sh", "-c", "echo before; sleep 600")
    assert (slow.exit, slow.out) == (Exit.TIMED_OUT, "before\n")
    nowhere = box_cli("box", "exec", "b-nowhere", "--", "true")
    assert (nowhere.exit, "b-nowhere" in nowhere.err) == (Exit.NOT_RUN, True)
    assert box_cli("box", "exec", box).exit == Exit.USAGE


def running(box_cli: Cli, box: str, name: str) -> bool:
    """Whether a process with this argument runs in the box."""
    look = f"for each in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $each; echo; done | grep -c '^sleep {name}'"
    return box_cli("box", "exec", box, "--", "sh", "-c", look).out.strip() != "0"


def wait_until_running(box_cli: Cli, box: str, name: str) -> None:
    deadline = time.monotonic() + 240
    while not running(box_cli, box, name):
        assert time.monotonic() < deadline, f"sleep {name} does not run"


def wait_until_gone(box_cli: Cli, box: str, name: str) -> None:
    deadline = time.monotonic() + 240
    while running(box_cli, box, name):
        assert time.monotonic() < deadline, f"sleep {name} runs on"


@pytest.mark.parametrize(
    ("stdin", "number"),
    [
        (subprocess.DEVNULL, signal.SIGINT),
        (subprocess.DEVNULL, signal.SIGTERM),
        (subprocess.DEVNULL, signal.SIGKILL),
        (subprocess.PIPE, signal.SIGINT),
        (subprocess.PIPE, signal.SIGTERM),
    ],
)
def test_the_command_ends_with_us(box_cli: Cli, boxes: BoxCli, box: str, stdin: int, number: signal.Signals) -> None:
    with boxes.start("exec", box, "--", "sh", "-c", f"echo ready; sleep 77{number:d}", stdin=stdin) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        wait_until_running(box_cli, box, f"77{number:d}")
        command.send_signal(number)
        _, err = command.communicate(timeout=240)
    assert b"Traceback" not in err
    if number is signal.SIGINT:
        assert command.returncode == Exit.INTERRUPTED
    wait_until_gone(box_cli, box, f"77{number:d}")


def test_a_reader_that_leaves_ends_the_command_quietly(box_cli: Cli, boxes: BoxCli, box: str) -> None:
    with boxes.start("exec", box, "--", "sh", "-c", "sleep 7799 & yes") as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.read(10)
        command.stdout.close()
        assert command.stderr.read() == b""
        command.wait(timeout=240)
    wait_until_gone(box_cli, box, "7799")


def test_json_has_it_all_in_one_document(boxes: BoxCli, box: str) -> None:
    done = boxes.run("exec", "--json", box, "--", "sh", "-c", "cat; echo err >&2; exit 3", stdin=b"in")
    assert done.returncode == 3
    assert json.loads(done.stdout) == {"exitCode": 3, "stdout": "in", "stderr": "err\n"}
    failed = boxes.run("exec", "--json", box, "--", "no-such-command")
    assert json.loads(failed.stderr)["error"]["code"] == "command_not_found"


def test_a_detached_command_goes_on_and_its_output_is_kept(boxes: BoxCli, box_cli: Cli, box: str) -> None:
    script = "echo one; echo wrong >&2; until [ -e go ]; do sleep 0.05; done; echo two; exit 5"
    process = box_cli("box", "exec", "--detach", box, "--", "sh", "-c", script).out.strip()
    with boxes.start("logs", box, process, "--follow", stdin=subprocess.DEVNULL) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == b"one\n"
        assert process in box_cli("box", "logs", box).out
        box_cli("box", "exec", box, "--", "touch", "go")
        out, err = reading.communicate(timeout=240)
    assert (reading.returncode, out) == (0, b"two\n")
    assert b"exit 5" in err
    assert box_cli("box", "logs", box, process).out == "one\ntwo\n"
    assert box_cli("box", "logs", box, process, "--offset", "4").out == "two\n"
    assert box_cli("box", "logs", box, process, "--stderr").out == "wrong\n"
    [listed] = box_cli("box", "logs", box, "--json").json()["processes"]
    assert (listed["id"], listed["state"], listed["exitCode"]) == (process, "exited", 5)
    missing = box_cli("box", "logs", box, "p-nowhere")
    assert (missing.exit, "p-nowhere" in missing.err) == (Exit.NOT_FOUND, True)


def test_ctrl_c_ends_the_reading_and_not_the_process(box_cli: Cli, boxes: BoxCli, box: str) -> None:
    process = box_cli("box", "exec", "-d", box, "--", "sh", "-c", "echo one; exec sleep 7788").out.strip()
    with boxes.start("logs", box, process, "--follow") as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == b"one\n"
        reading.send_signal(signal.SIGINT)
        _, err = reading.communicate(timeout=240)
    assert reading.returncode == Exit.INTERRUPTED
    assert f"holdfast box logs {box} {process} --follow --offset 4".encode() in err
    wait_until_running(box_cli, box, "7788")
