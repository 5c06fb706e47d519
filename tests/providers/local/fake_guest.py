"""A guest that lies: listens where a box's guest would, and answers each request as it was told to. Run by path.

Arguments: the folder of the box, and JSON of answers by operation ("*" for all others): `bytes` (hex) to send, over how
many `times`, which `descriptors` to send along, what (`pipe`, hex) to write to the one that came with the request, and
whether to `hold` the connection without ever saying more.
"""

import array
import json
import os
import signal
import socket
import sys
import threading
import tty
from collections.abc import Callable

LIFETIME = 60
"""Seconds: whoever is made to wait by this waits no longer."""


def let_it_block(descriptor: int) -> int:
    """Keep a copy, and see to it that whoever uses the descriptor is made to wait, whatever they do about that."""
    copy = os.dup(descriptor)

    def block() -> None:
        while True:
            os.set_blocking(copy, True)

    threading.Thread(target=block, daemon=True).start()
    return descriptor


def full_pipe() -> int:
    _, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, bytes(1 << 16))
    except BlockingIOError:
        return let_it_block(write)


def full_terminal() -> int:
    master, slave = os.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    try:
        while True:
            os.write(master, b"x" * 1024)
    except BlockingIOError:
        return let_it_block(master)


def full_socket() -> int:
    ours, theirs = socket.socketpair()
    os.dup(theirs.fileno())
    theirs.detach()
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(1 << 16))
    except BlockingIOError:
        return let_it_block(ours.detach())


KINDS: dict[str, Callable[[], int]] = {
    "full pipe": full_pipe,
    "full terminal": full_terminal,
    "full socket": full_socket,
    "folder": lambda: os.open("/", os.O_RDONLY),
    "device": lambda: os.open("/dev/zero", os.O_RDWR),
    "pipe": lambda: os.pipe()[0],
    "socket": lambda: socket.socketpair()[0].detach(),
    "file": lambda: os.open(__file__, os.O_RDONLY),
}


def main() -> None:
    signal.alarm(LIFETIME)
    folder, answers = sys.argv[1], json.loads(sys.argv[2])
    os.chdir(folder)
    if os.path.lexists("guest.sock"):
        os.unlink("guest.sock")  # noqa: PTH108
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("guest.sock")
    listener.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    held = []
    while True:
        connection, _ = listener.accept()
        try:
            request, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 8)
            name = next((name for name in answers if b"2:ops%d:%ss" % (len(name), name.encode()) in request), "*")
            answer = answers.get(name, {})
            for each in descriptors:
                if "pipe" in answer:
                    with open(each, "wb", closefd=False) as pipe:
                        pipe.write(bytes.fromhex(answer["pipe"]))
                os.close(each)
            given = [KINDS[kind]() for kind in answer.get("descriptors", [])]
            for _ in range(answer.get("times", 1)):
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))] if given else []
                if answer.get("bytes"):
                    connection.sendmsg([bytes.fromhex(answer["bytes"])], rights)
            for each in given:
                os.close(each)
            if answer.get("hold"):
                held.append(connection)
                continue
        except OSError:
            pass
        connection.close()


if __name__ == "__main__":
    main()
