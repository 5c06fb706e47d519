"""A Docker daemon for tests: a real one, with a socket, data and images of its own, that ends with whoever started it.

It has no network, no registry and nothing of the machine's own Docker. Its images are made of this machine's programs.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

PYTHON_IMAGE: Final = "holdfast-test/python:1"
"""The usual commands and Python."""
BUSYBOX_IMAGE: Final = "holdfast-test/busybox:1"
"""One static program, and nothing else: no Python, no C library."""
_START_SECONDS: Final = 240.0
_STOP_SECONDS: Final = 240.0
_IMPORT_SECONDS: Final = 240.0
_PIECE: Final = 1 << 20
_PROGRAMS: Final = (
    "sh", "bash", "awk", "basename", "cat", "chmod", "chown", "cmp", "cp", "cut", "date", "dd", "df", "dirname", "du",
    "echo", "env", "expr", "false", "find", "git", "grep", "head", "hostname", "id", "kill", "ln", "ls",
    "mkdir", "mkfifo", "mknod",
    "mktemp", "mount", "mv", "nice", "od", "printf", "ps", "pwd", "readlink", "realpath", "rm", "rmdir", "sed", "seq",
    "setsid", "sha256sum",
    "sleep", "sort", "stat", "stty", "su", "sync", "tail", "tar", "tee", "test", "timeout", "touch", "tr", "true",
    "truncate", "tty", "umount", "uname", "uniq", "unshare", "wc", "whoami", "xargs", "yes",
)  # fmt: skip
_LEFT_OUT: Final = frozenset(
    {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data", "site-packages",
     "dist-packages"}
)  # fmt: skip
_ETC: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
_FOLDERS: Final = (("root", 0o700), ("tmp", 0o1777), ("var", 0o755), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755))


class CannotStart(Exception):
    """Why there is no daemon on this machine."""


class DockerEngine:
    """Use it in `with`. Raises `CannotStart` where this machine has no daemon, or does not let it run."""

    def __init__(self, *, storage: str | None = None) -> None:
        self._storage = storage
        self._folder = Path()
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self._folder / "docker.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text("utf-8", "replace")
        return ""

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise CannotStart("a Docker daemon of its own needs root")
        daemon = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if daemon is None:
            raise CannotStart("there is no dockerd: apt-get install docker.io")
        # A short path: a socket's may have 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="hf-docker-"))
        try:
            self._start(daemon)
            self.import_image(PYTHON_IMAGE, python_files())
            self.import_image(BUSYBOX_IMAGE, busybox_files())
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, daemon: str) -> None:
        folder = self._folder
        command = [
            daemon, "--host", self.url, "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
            "--pidfile", str(folder / "pid"), "--bridge", "none", "--iptables=false", "--ip6tables=false",
            "--ip-forward=false", "--ip-masq=false", "--log-level", "warn",
        ]  # fmt: skip
        if self._storage is not None:
            command += ["--storage-driver", self._storage]
        if (unshare := shutil.which("unshare")) is not None:  # with no network: what it would pull, it does not find
            command = [unshare, "--net", *command]
        if (setpriv := shutil.which("setpriv")) is not None:  # when we are killed, it ends, and its containers with it
            command = [setpriv, "--pdeathsig", "TERM", *command]
        with (folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                raise CannotStart(f"dockerd does not run here: {self.log.strip()[-500:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as trial:
            try:
                trial.connect(str(self.socket))
            except OSError:
                return False
        try:
            with self._client(5.0) as client:
                return client.get("/_ping").status_code == 200
        except httpx.HTTPError:
            return False

    def _client(self, seconds: float) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(transport=transport, base_url="http://docker", timeout=seconds)

    def import_image(self, name: str, files: bytes) -> None:
        """A root filesystem, as tar, under a name."""
        repository, _, tag = name.partition(":")
        # In pieces: httpx keeps what it is given as a whole until all garbage is collected, after a folder of tests.
        pieces = (files[at : at + _PIECE] for at in range(0, len(files), _PIECE))
        with self._client(_IMPORT_SECONDS) as client:
            answer = client.post(
                "/images/create", params={"fromSrc": "-", "repo": repository, "tag": tag or "latest"}, content=pieces
            )
        if answer.status_code != 200 or '"error"' in answer.text:
            raise CannotStart(f"dockerd did not import {name}: {answer.text[:500]}")

    def stop(self) -> None:
        """End the daemon and every container of it, and remove all that it had."""
        if self._daemon is not None:
            if self._daemon.poll() is None:
                self._daemon.send_signal(signal.SIGTERM)
            try:
                self._daemon.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait(_STOP_SECONDS)
            self._daemon = None
        for place in _mounts_below(self._folder):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True, timeout=_STOP_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)


def _mounts_below(folder: Path) -> list[str]:
    """The innermost first."""
    if folder == Path():
        return []
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [place for place in reversed([line.split()[1] for line in lines]) if place.startswith(f"{folder}/")]


# --- images out of this machine's programs ----------------------------------------------------------------------------


def busybox_files() -> bytes:
    """A root filesystem with a static busybox. Raises `CannotStart` where there is none."""
    found = shutil.which("busybox")
    if found is None:
        raise CannotStart("there is no busybox: apt-get install busybox-static")
    busybox = Path(found).resolve()
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=240).stdout.split()
    root = _Root()
    root.copy(busybox, "usr/bin/busybox")
    root.link("bin", "usr/bin")
    for library in _libraries([busybox]):
        root.copy(library, str(library).lstrip("/"))
    for name in listed:
        if name != "busybox":
            root.link(f"usr/bin/{name}", "busybox")
    return root.finish()


def python_files(for_programs: Iterable[Path] = ()) -> bytes:
    """A root filesystem with the usual commands and Python, both of this machine.

    It has the libraries of `for_programs`, too, and not these themselves: somebody may bring them.
    """
    root = _Root()
    programs = {name: Path(found).resolve() for name in _PROGRAMS if (found := shutil.which(name)) is not None}
    for name, path in programs.items():
        root.copy(path, f"usr/bin/{name}")
    python, standard_library, extensions = _python()
    root.copy(python, "usr/bin/python3")
    for path in _module_files(standard_library):
        root.copy(path, str(path).lstrip("/"))
    for library in _libraries([*programs.values(), python, *extensions, *for_programs]):
        root.copy(library, str(library).lstrip("/"))
    for name in ("bin", "sbin", "lib", "lib64"):
        if (Path("/") / name).is_symlink():
            root.link(name, str(Path(f"/{name}").readlink()))
    return root.finish()


def _python() -> tuple[Path, Path, list[Path]]:
    """An interpreter, its standard library and the extensions in there: Debian's own, or the one that runs this."""
    own = Path("/usr/bin/python3")
    if own.exists():
        python = own.resolve()
        library = Path("/usr/lib") / python.name
        if (library / "os.py").exists():
            return python, library, sorted((library / "lib-dynload").glob("*.so"))
    library = Path(sysconfig.get_path("stdlib"))
    return Path(sys.executable).resolve(), library, sorted((library / "lib-dynload").glob("*.so"))


def _module_files(library: Path) -> Iterator[Path]:
    """Modules, and what they were compiled to: else the first thing that every box does is to compile them again."""
    for folder, names, files in os.walk(library):
        names[:] = sorted(name for name in names if name not in _LEFT_OUT and not name.startswith("config-"))
        for name in sorted(files):
            if name.endswith((".py", ".so", ".pyc")):
                yield Path(folder) / name


def _libraries(programs: Iterable[Path]) -> list[Path]:
    """The shared libraries that these need, and the loader, at the places where they are looked for."""
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False, timeout=240)
    found = set()
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] == "=>" and words[2].startswith("/"):
            found.add(Path(words[2]))
        elif words and words[0].startswith("/") and not words[0].endswith(":"):
            found.add(Path(words[0]))
    return sorted(found)


class _Root:
    """A root filesystem on its way into a tar archive."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115 - closed by finish
        self._there: set[str] = set()
        for name, mode in _FOLDERS:
            self._folder(name, mode)
        for name, text in _ETC.items():
            self._add(name, text.encode(), 0o644)

    def _put(self, member: tarfile.TarInfo, data: bytes = b"") -> None:
        """With the folders above it; what is there already stays."""
        if member.name in self._there:
            return
        if "/" in member.name:
            self._folder(member.name.rpartition("/")[0])
        self._there.add(member.name)
        self._tar.addfile(member, io.BytesIO(data))

    def _folder(self, name: str, mode: int = 0o755) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.mode = tarfile.DIRTYPE, mode
        self._put(member)

    def _add(self, name: str, data: bytes, mode: int, when: float = 0) -> None:
        member = tarfile.TarInfo(self._settled(name))
        member.size, member.mode, member.mtime = len(data), mode, when
        self._put(member, data)

    @staticmethod
    def _settled(name: str) -> str:
        """Where a file really goes, on machines whose /bin and /lib are links into /usr."""
        first, _, rest = name.partition("/")
        top = Path("/") / first
        return f"{top.readlink()}/{rest}" if rest and first != "etc" and top.is_symlink() else name

    def copy(self, source: Path, name: str) -> None:
        # With its time, which compiled modules know of their source.
        self._add(name, source.read_bytes(), 0o755, int(source.stat().st_mtime))

    def link(self, name: str, target: str) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        self._put(member)

    def finish(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()
