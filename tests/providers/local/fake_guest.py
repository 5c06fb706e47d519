"""A guest that lies: listens where a box's guest would, and answers each request as it was told to. Run by path.

Arguments: the folder of the box, and JSON of answers by operation ("*" for all others): `bytes` (hex) to send, over how
many `times`, which `descriptors` to send along, what (`pipe`, hex) to write to the one that came with the request, and
whether to `hold` the connection without ever saying more.
"""

import array
import json
import os
import socket
import sys

KINDS = {
    "folder": lambda: os.open("/", os.O_RDONLY),
    "device": lambda: os.open("/dev/zero", os.O_RDWR),
    "pipe": lambda: os.pipe()[0],
    "socket": lambda: socket.socketpair()[0].detach(),
    "file": lambda: os.open(__file__, os.O_RDONLY),
}


def main() -> None:
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
