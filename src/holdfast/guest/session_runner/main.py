"""The start of a session's runner: protects its process, reads its configuration, connects to the hub, and runs.

The configuration has the runner's token, which stays in memory. The host of the agent's server comes from its harness.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from holdfast.guest.init import process_tree
from holdfast.guest.runner.dialer import connect
from holdfast.guest.runner.harness_modules import host_module
from holdfast.guest.session_runner.link import Link
from holdfast.guest.session_runner.mailbox import Mailbox
from holdfast.guest.session_runner.outbox import Outbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol
    from urllib.parse import SplitResult

    class Host(Protocol):
        """The server of an agent. All methods are called in the main thread."""

        def start(self) -> None: ...

        def greeting(self) -> tuple[str, dict[str, Any]]:
            """Returns the message with which each connection begins. Called in another thread."""
            ...

        def take(self, type: str, fields: dict[str, Any]) -> None:
            """A message of the hub."""
            ...

        def look(self) -> None:
            """Tell the hub the status now."""
            ...

        def close(self) -> None: ...


ENDED = 0
BROKEN = 70
REPLACED = 75
_GOODBYE = 5.0


def main(program: int, configuration: bytes) -> None:
    """`program` is a descriptor of the archive that contains this code."""
    process_tree.close_to_others()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        runner = SessionRunner(json.loads(configuration))
    except (ValueError, KeyError, TypeError, OSError, ImportError, AttributeError) as error:
        sys.stderr.write("session runner: cannot start: %r\n" % error)
        sys.exit(BROKEN)
    code = runner.run()
    sys.stderr.flush()
    os._exit(code)


class SessionRunner:
    """Owns the link and the host."""

    def __init__(self, config: dict[str, Any]) -> None:
        import importlib
        from urllib.parse import urlsplit

        url = urlsplit(str(config["url"]))
        state = str(config["state"])
        os.makedirs(state, mode=0o700, exist_ok=True)
        self._mailbox = Mailbox()
        self._exit_code = ENDED
        self._outbox = Outbox(state)
        module = importlib.import_module(host_module(str(config["agent"])))
        self._host: Host = module.Host(self._mailbox, self._say, config["host"])
        path = "%s/v1/hub?runner=%s&process=%s" % (url.path.rstrip("/"), os.urandom(8).hex(), config["process"])
        self._link = Link(
            lambda: _dial(url),
            url.netloc,
            path,
            str(config["token"]),
            self._outbox,
            greet=self._host.greeting,
            on_message=lambda type, fields: self._mailbox.put(lambda: self._take(type, fields)),
            on_end=lambda why: self._mailbox.put(lambda: self._end(why)),
        )

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._mailbox.put(self._host.look))
        self._link.start()
        self._host.start()
        self._mailbox.run(_report)
        self._host.close()
        self._link.stop(_GOODBYE)
        self._outbox.close()
        return self._exit_code

    def _say(self, type: str, fields: dict[str, Any]) -> None:
        self._link.send(type, fields)

    def _take(self, type: str, fields: dict[str, Any]) -> None:
        if type == "stop":
            self._mailbox.stop()
        else:
            self._host.take(type, fields)

    def _end(self, why: str) -> None:
        sys.stderr.write("session runner: ends: %s\n" % why)
        self._exit_code = REPLACED
        self._outbox.close()
        self._mailbox.stop()


def _dial(url: SplitResult) -> Any:
    port = url.port or (443 if url.scheme == "https" else 80)
    return connect(url.scheme, url.hostname or "", port, os.environ)


def _report(error: Exception) -> None:
    import traceback

    sys.stderr.write(
        "session runner: %s" % "".join(traceback.format_exception(type(error), error, error.__traceback__))
    )
    sys.stderr.flush()
