"""Benchmarks that are several processes: the same file, started again in another role, and connected to by a socket."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from measuring import add_rounds, options, print_results
from report import Result, Row


@contextmanager
def started(file: str, *role: str) -> Iterator[tuple[int, int]]:
    """The port that a process in this role prints first, and its id."""
    command = [sys.executable, file, "--role", *role]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class HasRounds(Protocol):
    @property
    def rounds(self) -> int: ...


S = TypeVar("S", bound=HasRounds)


@dataclass(frozen=True, slots=True)
class Roles:
    """The command line of such a benchmark."""

    description: str | None
    rows: Sequence[Row]
    by_name: Mapping[str, Callable[[argparse.Namespace], None]]
    """What each role does."""
    ports: Sequence[str] = ()
    """Options of the roles: ports of the others."""

    def run(self, quick: S, full: S, measure: Callable[[S, Sequence[str]], list[Result]], against: str) -> None:
        """Play the role that the command line names. Without one, measure and print the results."""
        parser = options(self.description, self.rows)
        add_rounds(parser)
        parser.add_argument("--role", choices=tuple(self.by_name), help=argparse.SUPPRESS)
        for port in self.ports:
            parser.add_argument(f"--{port}", type=int, help=argparse.SUPPRESS)
        given = parser.parse_args()
        if given.role is not None:
            self.by_name[given.role](given)
            return
        size = quick if given.quick else full
        results = measure(replace(size, rounds=given.rounds or size.rounds), given.only)  # type: ignore[type-var]
        print_results(given, results, against)
