"""The floor that boxes are measured against: a bare bubblewrap with the mounts of a box, running `true`."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from holdfast.providers.local import LocalProvider, bubblewrap, runtime


def bare_sandbox(provider: LocalProvider) -> float:
    """Milliseconds."""
    data_dir, made = provider.data_dir, provider.mounted
    folder = data_dir.path / "floor"
    folder.mkdir()
    folder.chmod(0o711)
    data_dir.make_folder(folder / "upper")
    data_dir.make_folder(folder / "work")
    prefix = str(made.python_prefix) if made.python_prefix else None
    machine = bubblewrap.Machine(
        made.programs, made.masked_files, made.masked_folders, str(made.etc), str(made.guest), made.python, prefix
    )
    layers = (str(data_dir.layers / runtime.BASE / "files"),)
    files = bubblewrap.Files(layers, str(folder / "upper"), str(folder / "work"))
    with made.seccomp.open("rb") as program:
        arguments = bubblewrap.arguments(machine, files, "floor", seccomp=program.fileno())
        command = [str(made.bwrap), *arguments[: arguments.index("--") + 1], "true"]
        who = {"user": data_dir.uid, "group": data_dir.gid, "extra_groups": ()} if os.geteuid() == 0 else {}
        begin = time.perf_counter()
        subprocess.run(command, check=True, pass_fds=(program.fileno(),), **who)  # type: ignore[call-overload]
        taken = (time.perf_counter() - begin) * 1000
    shutil.rmtree(folder)
    return taken
