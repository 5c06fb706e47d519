"""Sends messages by Telegram's Bot API and Slack's Web API. Tokens go to these hosts only, and follow no redirect."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from holdfast.api.errors import Unavailable
from holdfast.api.tools.channels import ChannelType
from holdfast.redaction import Scrubber
from holdfast.sessions.channels.events import ChatFile
from holdfast.time_limit import time_limit

APIS: Final = {ChannelType.TELEGRAM: "https://api.telegram.org", ChannelType.SLACK: "https://slack.com/api"}
_SECONDS: Final = 30.0
_MOST_ANSWER: Final = 1024 * 1024
_SLACK_FILES: Final = "https://files.slack.com/"
_PATH: Final = re.compile(r"[A-Za-z0-9_./-]{1,300}")
_ENDINGS: Final = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


@dataclass(frozen=True, slots=True)
class Image:
    data: bytes
    type: str

    @property
    def name(self) -> str:
        return f"image.{_ENDINGS[self.type]}"


class Senders:
    def __init__(self, api: Callable[[ChannelType], str] = APIS.__getitem__) -> None:
        """`api` returns the base URL of a service."""
        self._api = api

    async def send(self, kind: ChannelType, token: str, chat: str, text: str | None, image: Image | None) -> None:
        """Raises `Unavailable` if the service does not take it."""
        async with httpx.AsyncClient(timeout=_SECONDS, trust_env=False, follow_redirects=False) as client:
            try:
                if kind is ChannelType.TELEGRAM:
                    await self._telegram(client, token, chat, text, image)
                else:
                    await self._slack(client, token, chat, text, image)
            except httpx.HTTPError as error:
                why = Scrubber(token).text(f"{kind} cannot be reached: {type(error).__name__}")
                raise Unavailable(why, hint="try again in a moment") from None

    async def fetch(self, kind: ChannelType, token: str, file: ChatFile, most: int) -> bytes:
        """Returns a file that somebody has sent. Raises `Unavailable` if it cannot be had, or has more bytes."""
        async with httpx.AsyncClient(timeout=_SECONDS, trust_env=False, follow_redirects=False) as client:
            try:
                async with time_limit(_SECONDS):
                    url, headers = await self._place(client, kind, token, file)
                    return await _read(client, url, headers, most)
            except (httpx.HTTPError, TimeoutError) as error:
                raise Unavailable(f"{kind} did not send it: {type(error).__name__}") from None

    async def _place(
        self, client: httpx.AsyncClient, kind: ChannelType, token: str, file: ChatFile
    ) -> tuple[str, dict[str, str]]:
        """Returns the URL of a file, and what proves that the bot may have it."""
        base = self._api(kind)
        if kind is ChannelType.TELEGRAM:
            answer = await client.post(f"{base}/bot{token}/getFile", json={"file_id": file.place})
            found = _check(kind, token, answer, "description").get("result")
            path = found.get("file_path") if isinstance(found, dict) else None
            if not isinstance(path, str) or _PATH.fullmatch(path) is None or ".." in path:
                raise Unavailable("telegram names no place for it")
            return f"{base}/file/bot{token}/{path}", {}
        # The event is signed, but the token goes to Slack alone.
        if not file.place.startswith((_SLACK_FILES, f"{base}/files-pri/")):
            raise Unavailable("it is not at Slack")
        return file.place, {"authorization": f"Bearer {token}"}

    async def _telegram(
        self, client: httpx.AsyncClient, token: str, chat: str, text: str | None, image: Image | None
    ) -> None:
        base = f"{self._api(ChannelType.TELEGRAM)}/bot{token}"
        if image is None:
            sent = await client.post(f"{base}/sendMessage", json={"chat_id": chat, "text": text})
        else:
            form = {"chat_id": chat, **({} if text is None else {"caption": text[:1024]})}
            files = {"photo": (image.name, image.data, image.type)}
            sent = await client.post(f"{base}/sendPhoto", data=form, files=files)
        _check(ChannelType.TELEGRAM, token, sent, "description")

    async def _slack(
        self, client: httpx.AsyncClient, token: str, chat: str, text: str | None, image: Image | None
    ) -> None:
        base, headers = self._api(ChannelType.SLACK), {"authorization": f"Bearer {token}"}
        if image is None:
            sent = await client.post(f"{base}/chat.postMessage", json={"channel": chat, "text": text}, headers=headers)
            _check(ChannelType.SLACK, token, sent, "error")
            return
        wanted = {"filename": image.name, "length": str(len(image.data))}
        asked = await client.post(f"{base}/files.getUploadURLExternal", data=wanted, headers=headers)
        place = _check(ChannelType.SLACK, token, asked, "error")
        url, id = str(place.get("upload_url")), str(place.get("file_id"))
        if not url.startswith("https://") and not url.startswith(base):
            raise Unavailable("slack named a place for the image that is not safe")
        uploaded = await client.post(url, content=image.data)  # without the token: the URL is the permission
        if uploaded.status_code != 200:
            raise Unavailable(f"slack did not take the image: {uploaded.status_code}")
        done = {"files": [{"id": id}], "channel_id": chat, **({} if text is None else {"initial_comment": text})}
        sent = await client.post(f"{base}/files.completeUploadExternal", json=done, headers=headers)
        _check(ChannelType.SLACK, token, sent, "error")


async def _read(client: httpx.AsyncClient, url: str, headers: Mapping[str, str], most: int) -> bytes:
    async with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code != 200:
            raise Unavailable(f"the service answered with {answer.status_code}")
        found = bytearray()
        async for piece in answer.aiter_bytes():
            found += piece
            if len(found) > most:
                raise Unavailable(f"it has more than {most:,} bytes")
    return bytes(found)


def _check(kind: ChannelType, token: str, answer: httpx.Response, reason: str) -> dict[str, Any]:
    try:
        document = answer.json() if len(answer.content) <= _MOST_ANSWER else {}
    except ValueError:
        document = {}
    if answer.status_code == 200 and isinstance(document, dict) and document.get("ok") is True:
        return document
    why = document.get(reason) if isinstance(document, dict) else None
    shown = Scrubber(token).text(str(why or answer.status_code)[:200])
    raise Unavailable(f"{kind} did not take the message: {shown}", hint="check the token of the bot, and the chat")
