"""Stand-ins for Telegram's Bot API and Slack's Web API: they speak the real wire, and keep what was sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qs

from holdfast.sessions.channels.events import slack_signature
from holdfast.testing.json_server import JsonServer

_Answer = tuple[int, dict[str, Any] | bytes]


class _Chat(JsonServer):
    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token
        self.sent: list[dict[str, Any]] = []
        """What was sent to chats, in order."""
        self.files: dict[str, bytes] = {}
        """What people have sent, by its id."""


class Telegram(_Chat):
    """`sendMessage` and `sendPhoto`, as api.telegram.org answers them, and updates as it sends them."""

    def respond(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        prefix = f"/bot{self.token}/"
        files = f"/file/bot{self.token}/files/"
        if target.startswith(files):
            found = self.files.get(target.removeprefix(files))
            return (200, found) if found is not None else _refused(404, "Not Found")
        if not target.startswith(prefix):
            return 401, {"ok": False, "error_code": 401, "description": "Unauthorized"}
        given = _fields(headers, body)
        called = target.removeprefix(prefix)
        if called == "getFile":
            known = given.get("file_id") in self.files
            path = {"file_id": given.get("file_id"), "file_path": f"files/{given.get('file_id')}"}
            return (200, {"ok": True, "result": path}) if known else _refused(400, "Bad Request: invalid file_id")
        if not given.get("chat_id"):
            return 400, {"ok": False, "error_code": 400, "description": "Bad Request: chat_id is empty"}
        if called == "sendMessage" and not given.get("text"):
            return 400, {"ok": False, "error_code": 400, "description": "Bad Request: message text is empty"}
        if called not in ("sendMessage", "sendPhoto"):
            return 404, {"ok": False, "error_code": 404, "description": "Not Found"}
        self.sent.append({"method": called, **given})
        return 200, {"ok": True, "result": {"message_id": len(self.sent), "chat": {"id": given["chat_id"]}}}

    @staticmethod
    def update(number: int, chat: int, text: str = "", *, username: str = "ada", **more: Any) -> bytes:
        """Returns an update with a message. `more` are fields of it, such as `photo`."""
        sender = {"id": 7, "is_bot": False, "first_name": "Ada", "username": username}
        message = {
            "message_id": number,
            "from": sender,
            "chat": {"id": chat, "type": "private"},
            "date": 1,
            **({"text": text} if text else {}),
            **more,
        }
        return json.dumps({"update_id": number, "message": message}).encode()


class Slack(_Chat):
    """`chat.postMessage` and the upload of files, as slack.com answers them, and signed events as it sends them."""

    def __init__(self, token: str, signing: str) -> None:
        super().__init__(token)
        self.signing = signing
        self.uploads: dict[str, bytes] = {}

    def respond(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        if target.startswith("/upload/"):
            self.uploads[target.removeprefix("/upload/")] = body
            return 200, {"ok": True}
        if headers.get("authorization") != f"Bearer {self.token}":
            return 200, {"ok": False, "error": "invalid_auth"}
        if target.startswith("/files-pri/"):
            found = self.files.get(target.removeprefix("/files-pri/"))
            return (404, b"not found") if found is None else (200, found)
        given = _fields(headers, body)
        match target:
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


def _refused(code: int, why: str) -> _Answer:
    return code, {"ok": False, "error_code": code, "description": why}


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
