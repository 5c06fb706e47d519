"""Measures the activity in a box for process 1. Must be cheap, because the host asks again and again."""

import _socket
import posix

_PIECE = 65536


def processor_time(processes: "list[int]") -> int:
    """Returns the CPU milliseconds that these processes and all exited ones have used, without this process."""
    ended = posix.times()
    seconds = ended.children_user + ended.children_system
    ticks = 0
    for pid in processes:
        data = read_start("/proc/%d/stat" % pid, 4096)
        # The fields after the name, which may contain anything: state, …, utime, stime, cutime, cstime.
        fields = data[data.rfind(b")") + 2 :].split()[11:15]
        if len(fields) == 4:
            ticks += sum([int(each) for each in fields])
    return int((seconds + ticks / posix.sysconf("SC_CLK_TCK")) * 1000)


def count_listening(ignored: "list[_socket.socket]") -> int:
    """Count the ports that processes in the box listen on, without the ignored listeners."""
    own: dict[int, list[bytes]] = {_socket.AF_INET: [], _socket.AF_INET6: []}
    for each in ignored:
        own[each.family].append(b"%d" % posix.fstat(each.fileno()).st_ino)
    count = 0
    for family, summary, name, path in (
        (_socket.AF_INET, "/proc/net/sockstat", b"TCP:", "/proc/net/tcp"),
        (_socket.AF_INET6, "/proc/net/sockstat6", b"TCP6:", "/proc/net/tcp6"),
    ):
        # Listing sockets is slow, because the kernel searches those of all boxes. Their number is known at once.
        words = [line.split() for line in read_start(summary, 4096).split(b"\n") if line.startswith(name)]
        if words and int(words[0][2]) <= len(own[family]):
            continue
        for line in read_start(path, _PIECE).split(b"\n")[1:-1]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != b"0A":
                break  # listening sockets come first
            if fields[9] not in own[family]:
                count += 1
    return count


def read_start(path: str, limit: int) -> bytes:
    """Read the beginning of a kernel file. Returns nothing if it no longer exists."""
    try:
        descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while len(data) < limit:
            piece = posix.read(descriptor, limit - len(data))
            if not piece:
                break
            data += piece
        return data
    except OSError:
        return b""
    finally:
        posix.close(descriptor)
