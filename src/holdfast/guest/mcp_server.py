"""An MCP server in a box: offers the tools of a configuration file to the agent, and passes calls on to Holdfast.

The agent starts it as `python mcp_server.py CONFIGURATION` and speaks JSON-RPC with it, one message a line. This file
is copied into the box as it is: it imports nothing but the standard library, and works with Python 3.9.

The configuration has the URL of the guest API, the token of the run for these calls, and the tools. While the server
cannot be reached, a call is repeated for a while. A tool that takes a key gets one with each call, so a repeated call
has no second effect.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first. What is used here is the same in all of them."""
_AT_ONCE = 8
_SECONDS = 75.0
"""Longer than any call waits."""
_PATIENCE = 120.0
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_AGAIN = (408, 429, 502, 503, 504)
_MOST = 4 << 20
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


class Problem(Exception):
    """A call was refused, or got no answer. The message is for the agent."""


class Tools:
    """The tools of the configuration."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.url = str(configuration["url"]).rstrip("/")
        self._token = str(configuration["token"])
        self.definitions: list[dict[str, Any]] = configuration["tools"]
        self.names = [each["name"] for each in self.definitions]
        self._keyed = [each["name"] for each in self.definitions if "key" in each["inputSchema"]["properties"]]

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Returns the answer, as JSON. Raises `Problem`."""
        if name not in self.names:
            raise Problem("there is no tool %s: use one of %s" % (name, ", ".join(self.names)))
        if name in self._keyed and not arguments.get("key"):
            arguments = {**arguments, "key": "call-" + os.urandom(12).hex()}
        body = json.dumps(arguments).encode()
        end, pause = time.monotonic() + _PATIENCE, _FIRST_PAUSE
        while True:
            status, answer = self._post("/v1/tools/" + name, body)
            if status == 200:
                return answer
            if status not in _AGAIN and status != 0:
                raise Problem(message_in(answer))
            if time.monotonic() + pause > end:
                raise Problem("Holdfast does not answer: %s" % message_in(answer))
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _post(self, path: str, body: bytes) -> tuple[int, str]:
        """Returns the status and the answer, or 0 and the reason if there was none."""
        import ssl
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

        headers = {"Authorization": "Bearer " + self._token, "Content-Type": "application/json"}
        if self.url.startswith("https:"):
            context = ssl.create_default_context()
            if not context.cert_store_stats()["x509_ca"]:
                for bundle in _BUNDLES:
                    if os.path.exists(bundle):
                        context.load_verify_locations(bundle)
                        break
            opener = build_opener(HTTPSHandler(context=context))
        else:
            opener = build_opener(ProxyHandler({}))  # the guest API is the proxy itself
        try:
            with opener.open(Request(self.url + path, body, headers), timeout=_SECONDS) as response:
                return response.status, response.read(_MOST).decode("utf-8", "replace")
        except HTTPError as error:
            with error:
                return error.code, error.read(_MOST).decode("utf-8", "replace")
        except (OSError, HTTPException, ValueError) as error:
            return 0, str(error) or type(error).__name__


def message_in(answer: str) -> str:
    """Returns the message of an error, with its hint."""
    try:
        error = json.loads(answer)["error"]
        hint = error.get("hint")
        return "%s (%s)" % (error["message"], hint) if hint else str(error["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return answer[:500]


class Server:
    """Answers messages of the agent. Calls of tools run in threads, because some wait for long."""

    def __init__(self, tools: Tools, output: int = 1) -> None:
        self._tools = tools
        self._output = output
        self._writing = threading.Lock()
        self._room = threading.BoundedSemaphore(_AT_ONCE)

    def take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._send({"id": None, "error": {"code": -32700, "message": "this is not JSON"}})
            return
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, dict) and "method" in each and "id" in each:
                self._answer(each["id"], each["method"], each.get("params"))

    def _answer(self, id: Any, method: Any, params: Any) -> None:
        params = params if isinstance(params, dict) else {}
        if method == "tools/call":
            thread = threading.Thread(target=self._call, args=(id, params), daemon=True)
            thread.start()
            return
        if method == "initialize":
            wanted = params.get("protocolVersion")
            result: dict[str, Any] = {
                "protocolVersion": wanted if wanted in _PROTOCOLS else _PROTOCOLS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "holdfast", "version": "1"},
            }
        elif method == "tools/list":
            result = {"tools": self._tools.definitions}
        elif method == "ping":
            result = {}
        else:
            self._send({"id": id, "error": {"code": -32601, "message": "there is no method %s" % str(method)[:100]}})
            return
        self._send({"id": id, "result": result})

    def _call(self, id: Any, params: dict[str, Any]) -> None:
        arguments = params.get("arguments")
        with self._room:
            try:
                text, failed = self._tools.call(str(params.get("name")), arguments if arguments else {}), False
            except Problem as problem:
                text, failed = str(problem), True
        self._send({"id": id, "result": {"content": [{"type": "text", "text": text}], "isError": failed}})

    def _send(self, message: dict[str, Any]) -> None:
        data = memoryview(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        with self._writing:
            try:
                while data:
                    data = data[os.write(self._output, data) :]
            except OSError:
                os._exit(0)  # the agent has left


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        server = Server(Tools(json.load(file)))
    with os.fdopen(0, "rb", closefd=False) as lines:
        for line in lines:
            if line.strip():
                server.take(line)
    os._exit(0)  # a call that still waits has nobody to answer to


if __name__ == "__main__":
    main(sys.argv[1])
