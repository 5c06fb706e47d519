"""Process 1 of a box whose first stream is its own stdin and stdout: the guest, and beside it a bridge on these.

So nothing else has to be started before the box is usable. Later streams are bridges only, started with `join`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.guest.init import stream_server
else:
    sys.path.insert(0, __file__.rpartition("/")[0])
    import stream_server


def main(arguments: "list[str]") -> None:
    if arguments[0] == "join":
        stream_server.main(arguments)
    elif os.fork() == 0:
        stream_server.main(["join"] + [each for each in arguments if each.startswith("run=")])
        os._exit(0)
    else:
        nothing = os.open("/dev/null", os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.close(nothing)
        stream_server.main(["start", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
