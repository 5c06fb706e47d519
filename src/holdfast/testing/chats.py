"""Stand-ins for Telegram's Bot API and Slack's Web API: they speak the real wire, and keep what was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

from holdfast.sessions.channels.events import slack_signature

_Answer = tuple[int, dict[str, Any]]


class _Chat:
    """A server on this machine. Use it in a `with` block."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.sent: list[dict[str, Any]] = []
        """What was sent to chats, in order."""
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, name="chat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        raise NotImplementedError


class Telegram(_Chat):
    """`sendMessage` and `sendPhoto`, as api.telegram.org answers them, and updates as it sends them."""

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        prefix = f"/bot{self.token}/"
        if not path.startswith(prefix):
            return 401, {"ok": False, "error_code": 401, "description": "Unauthorized"}
        given = _fields(headers, body)
        method = path.removeprefix(prefix)
        if not given.get("chat_id"):
            return 400, {"ok": False, "error_code": 400, "description": "Bad Request: chat_id is empty"}
        if method == "sendMessage" and not given.get("text"):
            return 400, {"ok": False, "error_code": 400, "description": "Bad Request: message text is empty"}
        if method not in ("sendMessage", "sendPhoto"):
            return 404, {"ok": False, "error_code": 404, "description": "Not Found"}
        self.sent.append({"method": method, **given})
        return 200, {"ok": True, "result": {"message_id": len(self.sent), "chat": {"id": given["chat_id"]}}}

    @staticmethod
    def update(number: int, chat: int, text: str, *, username: str = "ada") -> bytes:
        """Returns an update with a message."""
        sender = {"id": 7, "is_bot": False, "first_name": "Ada", "username": username}
        message = {
            "message_id": number,
            "from": sender,
            "chat": {"id": chat, "type": "private"},
            "date": 1,
            "text": text,
        }
        return json.dumps({"update_id": number, "message": message}).encode()


class Slack(_Chat):
    """`chat.postMessage` and the upload of files, as slack.com answers them, and signed events as it sends them."""

    def __init__(self, token: str, signing: str) -> None:
        super().__init__(token)
        self.signing = signing
        self.uploads: dict[str, bytes] = {}

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        if path.startswith("/upload/"):
            self.uploads[path.removeprefix("/upload/")] = body
            return 200, {"ok": True}
        if headers.get("authorization") != f"Bearer {self.token}":
            return 200, {"ok": False, "error": "invalid_auth"}
        given = _fields(headers, body)
        match path:
            case "/chat.postMessage" if given.get("channel") and given.get("text"):
                self.sent.append({"method": "chat.postMessage", **given})
                return 200, {"ok": True, "ts": "1.1", "channel": given["channel"]}
            case "/files.getUploadURLExternal":
                id = f"F{len(self.uploads) + 1}"
                return 200, {"ok": True, "upload_url": f"{self.url}/upload/{id}", "file_id": id}
            case "/files.completeUploadExternal":
                self.sent.append({"method": "files.completeUploadExternal", **given})
                return 200, {"ok": True, "files": given["files"]}
        return 200, {"ok": False, "error": "invalid_arguments"}

    @staticmethod
    def event(id: str, channel: str, text: str, **more: Any) -> bytes:
        """Returns an event with a message."""
        inner = {"type": "message", "channel": channel, "user": "U1", "text": text, "ts": "1.1", **more}
        return json.dumps({"type": "event_callback", "event_id": id, "event": inner}).encode()

    def headers(self, body: bytes, timestamp: int) -> dict[str, str]:
        """Returns the headers by which Slack signs a request."""
        stamp = str(timestamp)
        signature = slack_signature(self.signing, stamp, body)
        return {"x-slack-request-timestamp": stamp, "x-slack-signature": signature}


def _fields(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    kind = headers.get("content-type", "")
    if kind.startswith("application/json"):
        document = json.loads(body)
        return document if isinstance(document, dict) else {}
    if kind.startswith("application/x-www-form-urlencoded"):
        return {name: values[0] for name, values in parse_qs(body.decode()).items()}
    message = BytesParser(policy=HTTP).parsebytes(f"content-type: {kind}\r\n\r\n".encode() + body)
    found: dict[str, Any] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        found[str(name)] = content if part.get_filename() else content.decode()
    return found


def _handler(chat: _Chat) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, document = chat.answer(self.path, headers, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler
