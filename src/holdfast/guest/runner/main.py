"""The start of a runner: protects its process, reads its configuration, finds the reader, and runs."""

from __future__ import annotations

import os
import signal
import sys

from holdfast.guest.init import process_tree
from holdfast.guest.runner.config import parse
from holdfast.guest.runner.event_loop import Loop
from holdfast.guest.runner.harness_modules import driver_module, reader_module
from holdfast.guest.runner.run import BROKEN, Run

_DRIVER = (
    "import sys; sys.path.insert(0, '/proc/self/fd/3');"
    " from holdfast.guest.init import process_tree; process_tree.close_to_others();"
    " import runpy; sys.argv[1:2] = []; runpy.run_module(%r, run_name='__main__', alter_sys=True)"
)


def main(program: int, configuration: bytes) -> None:
    """`program` is a descriptor of the archive that contains this code."""
    process_tree.close_to_others()
    process_tree.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        config = parse(configuration)
        os.makedirs(config.state, mode=0o700, exist_ok=True)
        reader = _reader(config.reader)
    except (ValueError, KeyError, TypeError, OSError, ImportError, AttributeError) as error:
        sys.stderr.write("runner: cannot start: %r\n" % error)
        sys.exit(BROKEN)
    loop = Loop()
    run = Run(config, loop, reader)
    argv, archive = config.argv, None
    if config.driver is not None:
        module = driver_module(config.driver)
        argv, archive = [*interpreter(), "-I", "-S", "-c", _DRIVER % module, module, *config.argv], program
    try:
        run.start(argv, archive)
    except Exception as error:
        run.fail(error)
    loop.run(run.fail)
    # There is nothing to clean up, and a normal exit of the interpreter takes some milliseconds.
    sys.stderr.flush()
    os._exit(run.exit_code)


def _reader(name: str):  # type: ignore[no-untyped-def]
    import importlib

    return importlib.import_module(reader_module(name)).Reader()


def interpreter() -> list[str]:
    """Returns how this interpreter was started, without its options. A loader may come first."""
    with open("/proc/self/cmdline", "rb") as file:
        words = [os.fsdecode(each) for each in file.read().split(b"\0")]
    return words[: words.index("-I")] if "-I" in words else [sys.executable]
