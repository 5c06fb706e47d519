"""The host of OpenCode in a session: one server for all prompts, one session of OpenCode for each channel.

Runs in the box, in the runner of the session. The hub sends prompts and requests; each prompt is a turn, whose entries
go back to the hub. The configuration is written here, and the server is restarted only if it has changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import urllib.parse

from holdfast.guest.hub_messages import EXPIRED, InvalidMessage
from holdfast.guest.turn_messages import message_of
from holdfast.harnesses.opencode.agent_files import AgentFiles
from holdfast.harnesses.opencode.server import Failed, Server, parse_object
from holdfast.harnesses.opencode.supervision import Supervisor
from holdfast.harnesses.opencode.turn import MOST_RETRIES, Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.guest.runner.event_loop import Timer
    from holdfast.guest.session_runner.mailbox import Mailbox

    Say = Callable[[str, dict[str, Any]], None]

_DEFAULT = "web:default"
_REMEMBERED = 1000
_COMMAND_SECONDS = 3 * 24 * 3600.0
"""The end of a command is seen in its events; this only bounds the request."""
_MAX_TITLE = 60


class Host:
    """`say` tells the hub something. All methods but `greeting` are called in the main thread."""

    def __init__(self, mailbox: Mailbox, say: Say, config: dict[str, Any]) -> None:
        self._mailbox = mailbox
        self._say = say
        self._folder = str(config["folder"])
        self._file = str(config["file"])
        self._configuration: dict[str, Any] = dict(config["configuration"])
        """What the server of Holdfast wants, to which the hub adds tools, instructions and providers."""
        self._channels: dict[str, str] = {}
        """OpenCode's session, by channel."""
        self._turns: dict[str, Turn] = {}
        self._waiting: dict[str, dict[str, Any]] = {}
        """Prompts that wait for the server, by run."""
        self._ended: dict[str, None] = {}
        self._last = ""
        """The run of the latest turn."""
        self._questions: dict[str, dict[str, Any]] = {}
        self._timer: Timer | None = None
        self._written = ""
        self._env = {str(name): str(value) for name, value in config["env"].items()}
        self._files = AgentFiles(str(config["env"].get("XDG_CONFIG_HOME", self._folder)) + "/opencode")
        self._has_new_files = False
        self._next_config: dict[str, Any] | None = None
        """A configuration that waits for the end of a turn."""
        self._supervisor = Supervisor(
            mailbox,
            str(config["program"]),
            self._env,
            self._folder,
            on_ready=self._ready,
            on_event=self._event,
            on_lost=self._lost,
            on_events_lost=self._resync,
            report=lambda fields: say("runner-health", fields),
        )
        self._orders: dict[str, Callable[[dict[str, Any]], None]] = {
            "init": lambda fields: self._announce(),
            "prompt": self._prompt,
            "abort": self._abort,
            "answer": self._answer,
            "plugin-content": self._take_content,
            "opencode-config": self._configure,
            "new-session": self._new_session,
            "diff": lambda fields: self._in_background(fields, self._diff),
            "revert": lambda fields: self._in_background(fields, self._revert),
            "opencode-command": lambda fields: self._in_background(fields, self._command),
        }

    def start(self) -> None:
        self._write({})
        self._supervisor.start()

    def close(self) -> None:
        for turn in list(self._turns.values()):
            turn.cancel()
            self._end(turn)
        self._supervisor.stop()

    def greeting(self) -> tuple[str, dict[str, Any]]:
        return "agentStatus", self._status()

    def look(self) -> None:
        self._say("agentStatus", self._status())

    def take(self, type: str, fields: dict[str, Any]) -> None:
        order = self._orders.get(type)
        if order is not None:
            order(fields)

    def _status(self) -> dict[str, Any]:
        turns = [*self._turns.values()]
        detail = self._supervisor.fatal
        status = "error" if detail else turns[0].status if turns else "thinking" if self._waiting else "idle"
        running = [*(each.run for each in turns), *self._waiting]
        about = {"status": status, "turns": running, "lastTurn": self._last, "sessions": dict(self._channels)}
        return {**about, **({"detail": detail} if detail else {})}

    def _announce(self) -> None:
        """Tell a hub that may be new what it cannot know: questions that wait for somebody."""
        for question in list(self._questions.values()):
            self._say("question", question["told"])

    # --- prompts ---

    def _prompt(self, fields: dict[str, Any]) -> None:
        about = fields.get("turn")
        if about is None or about["run"] in self._ended:
            return
        if about["run"] not in self._turns and about["run"] not in self._waiting:  # otherwise it came twice
            self._waiting[about["run"]] = fields
            self._dispatch()
        if about["run"] in self._waiting:
            self.look()  # the hub takes it for alive from now on, however long the server takes to start

    def _dispatch(self) -> None:
        """Begin the prompts that wait, if the server is well; end them if it stays down."""
        server = self._supervisor.server
        if server is None and not self._supervisor.fatal:
            return
        for run in list(self._waiting):
            fields = self._waiting.pop(run)
            turn = self._turns[run] = self._make_turn(fields)
            self._last = run
            try:
                if server is None:
                    raise Failed(f"OpenCode does not run: {self._supervisor.fatal}")
                self._begin(server, turn, fields)
            except Failed as error:
                turn.fail(str(error))
                self._end(turn)
        self._schedule()

    def _make_turn(self, fields: dict[str, Any]) -> Turn:
        about = fields["turn"]
        run, timeout = str(about["run"]), about.get("timeoutMs")

        def keep(entry: bytes) -> None:
            try:
                self._say(*message_of(run, entry))
            except InvalidMessage as error:
                self._say(*message_of(run, turn.replaced(entry, str(error))))

        turn = Turn(
            run,
            int(about["epoch"]),
            _channel(fields),
            keep=keep,
            clock=self._mailbox.clock,
            wall=time.time,
            timeout=None if timeout is None else timeout / 1000,
            retries=int(about.get("retries", MOST_RETRIES)),
        )
        return turn

    def _begin(self, server: Server, turn: Turn, fields: dict[str, Any]) -> None:
        about = fields["turn"]
        session = about.get("session") or self._channels.get(turn.channel)
        if session is not None:
            info = server.ask("GET", f"/session/{_quoted(session)}")
        else:
            # With a title, OpenCode does not ask the model for one.
            title = " ".join(str(about.get("title") or fields["content"]).split())[:_MAX_TITLE] or "A prompt"
            info = server.ask("POST", "/session", {"title": title})
        if not isinstance(info.get("id"), str):
            raise Failed("opencode answers with a session that has no id")
        if self._channels.get(turn.channel) != info["id"]:
            self._channels[turn.channel] = info["id"]
            self._say("channel-session-created", {"channelKey": turn.channel, "opencodeSessionId": info["id"]})
        kind, _, id = turn.channel.partition(":")
        self._say(
            "message.create",
            {"turnId": turn.run, "channelType": kind, "channelId": id, "opencodeSessionId": info["id"]},
        )
        turn.begin(info)
        body: dict[str, Any] = {"parts": [{"type": "text", "text": fields["content"]}, *_files(fields)]}
        provider, slash, model = str(fields.get("model", "")).partition("/")
        if slash:
            body["model"] = {"providerID": provider, "modelID": model}
        command = _command_in(server, fields["content"])
        if command is None:
            server.ask("POST", "/session/{}/prompt_async".format(_quoted(info["id"])), body)
        else:
            self._run_command(server, turn, info["id"], command, str(fields.get("model", "")))
        turn.sent()
        self.look()

    def _run_command(self, server: Server, turn: Turn, session: str, command: dict[str, str], model: str) -> None:
        """Run a slash command. OpenCode answers when it is done; its events come as those of a prompt."""

        def run() -> None:
            try:
                body = {**command, **({"model": model} if model else {})}
                server.request("POST", f"/session/{_quoted(session)}/command", body, _COMMAND_SECONDS)
            except Failed as error:
                why = str(error)
                self._mailbox.put(lambda: self._fail(turn, why))

        threading.Thread(target=run, daemon=True).start()

    def _fail(self, turn: Turn, why: str) -> None:
        if not turn.over:
            turn.fail(why)
            self._end(turn)

    def _event(self, line: bytes) -> None:
        for turn in list(self._turns.values()):
            before = turn.status
            asked = turn.take(line)
            if asked is not None:
                self._ask(turn, *asked)
            if turn.wants_abort:
                self._tell_abort(turn)
            if turn.is_done:
                self._end(turn)
            elif turn.status != before:
                self.look()
        self._schedule()

    def _schedule(self) -> None:
        self._mailbox.cancel(self._timer)
        waits = [turn.wait() for turn in self._turns.values()]
        self._timer = self._mailbox.after(min(waits), self._check) if waits else None

    def _check(self) -> None:
        self._timer = None
        for turn in list(self._turns.values()):
            if turn.check():
                self._tell_abort(turn)
            if turn.is_done:
                self._end(turn)
        self._schedule()

    def _end(self, turn: Turn) -> None:
        turn.end()
        self._turns.pop(turn.run, None)
        self._ended[turn.run] = None
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        for question in [id for id, each in self._questions.items() if each["run"] == turn.run]:
            del self._questions[question]
            self._say("question-closed", {"questionId": question})
        self._apply()
        self.look()

    def _tell_abort(self, turn: Turn) -> None:
        server = self._supervisor.server
        if server is not None and turn.session is not None:
            path = f"/session/{_quoted(turn.session)}/abort"
            threading.Thread(target=_ask_quietly, args=(server, "POST", path, {}), daemon=True).start()

    def _abort(self, fields: dict[str, Any]) -> None:
        """End the turns of a channel, or all, also while OpenCode waits for a retry. Its server stays."""
        wanted = _channel(fields) if "channelType" in fields else None
        for run in [run for run, each in self._waiting.items() if wanted in (None, _channel(each))]:
            turn = self._turns[run] = self._make_turn(self._waiting.pop(run))
            turn.cancel()
        for turn in list(self._turns.values()):
            if wanted in (None, turn.channel) and turn.cancel():
                self._tell_abort(turn)
        self._say("aborted", {})
        self._check()

    # --- the server ---

    def _ready(self) -> None:
        self._dispatch()
        server = self._supervisor.server
        if server is not None:
            threading.Thread(target=self._read_models, args=(server,), daemon=True).start()
        self.look()

    def _read_models(self, server: Server) -> None:
        try:
            found = parse_object(server.request("GET", "/config/providers"))
        except Failed:
            return
        models = []
        for provider in found.get("providers") or ():
            known = provider.get("models") if isinstance(provider, dict) else None
            if isinstance(known, dict):
                named = [{"id": str(id), "name": str(each.get("name", id))} for id, each in known.items()]
                models.append({"provider": str(provider.get("id")), "models": named})
        self._mailbox.put(lambda: self._say("models", {"models": models}))

    def _lost(self, code: int | None) -> None:
        for turn in list(self._turns.values()):
            turn.lose(code)
            self._end(turn)
        self._dispatch()
        self.look()

    def _resync(self) -> None:
        """Events were lost: take what they told from the messages themselves, and from what waits for somebody."""
        server = self._supervisor.server
        for turn in list(self._turns.values()):
            if server is None or turn.session is None:
                continue
            try:
                found = json.loads(server.request("GET", f"/session/{_quoted(turn.session)}/message"))
                busy = server.ask("GET", "/session/status").get(turn.session)
                asked = [
                    {"type": f"{kind}.asked", "properties": each}
                    for kind in ("permission", "question")
                    for each in _objects(json.loads(server.request("GET", f"/{kind}")))
                ]
            except (Failed, ValueError):
                continue
            messages = turn.own(_objects(found))
            for event in (*_events_of(messages, turn.session), *asked):
                self._event(json.dumps(event).encode())
            # Without an answer, it has not begun to work on the prompt.
            if busy is None and any((each.get("info") or {}).get("role") == "assistant" for each in messages):
                idle = {"type": "session.idle", "properties": {"sessionID": turn.session}}
                self._event(json.dumps(idle).encode())

    # --- configuration ---

    def _take_content(self, fields: dict[str, Any]) -> None:
        """Write skills and tools. The configuration, which follows, applies them."""
        try:
            self._has_new_files |= self._files.write(fields["skills"], fields["tools"])
        except (OSError, ValueError) as error:
            self._say("opencode-config-applied", {"success": False, "restarted": False, "error": str(error)})

    def _configure(self, fields: dict[str, Any]) -> None:
        self._next_config = fields["config"]
        self._apply()

    def _apply(self) -> None:
        """Apply the configuration that waits, unless a turn is in progress. The server is restarted if it is new."""
        if self._next_config is None or self._turns:
            return
        config, self._next_config = self._next_config, None
        try:
            changed = self._write(config)
        except OSError as error:
            self._say("opencode-config-applied", {"success": False, "restarted": False, "error": str(error)})
            return
        restart = changed or self._has_new_files or bool(self._supervisor.fatal)
        self._has_new_files = False
        if restart:
            self._supervisor.restart()
        self._say("opencode-config-applied", {"success": True, "restarted": restart})

    def _write(self, config: dict[str, Any]) -> bool:
        """Write the configuration. Returns whether it is another one than before."""
        made = merged(self._configuration, config)
        text = json.dumps(made)
        if text == self._written:
            return False
        first, self._written = not self._written, text
        if "permission" in made:
            self._env["OPENCODE_PERMISSION"] = json.dumps(made["permission"])  # which overrides the configuration
        temporary = self._file + ".new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, self._file)  # noqa: PTH105
        return not first

    def _new_session(self, fields: dict[str, Any]) -> None:
        """The next prompt of a channel begins a new session of OpenCode."""
        self._channels.pop(_channel(fields), None)
        names = ("channelType", "channelId", "requestId")
        self._say("session-reset", {name: fields[name] for name in names})

    # --- questions and permissions ---

    def _ask(self, turn: Turn, kind: str, about: dict[str, Any]) -> None:
        id = str(about.get("id", ""))
        if id in self._questions:
            return
        told = _question(id, kind, about)
        self._questions[id] = {"run": turn.run, "kind": told["kind"], "count": _count(about), "told": told}
        told["turnId"] = turn.run
        turn.asked.add(id)
        options = {"options": told["options"]} if "options" in told else {}
        text = {"question": id, "kind": told["kind"], "text": told["text"], **options}
        turn.add({"type": "opencode.question", **text})
        self._say("question", told)

    def _answer(self, fields: dict[str, Any]) -> None:
        id, answer = fields["questionId"], fields["answer"]
        question, server = self._questions.pop(id, None), self._supervisor.server
        if question is None or server is None:
            return
        threading.Thread(target=_ask_quietly, args=(server, "POST", *_reply(id, question, answer)), daemon=True).start()
        turn = self._turns.get(question["run"])
        if turn is not None:
            turn.asked.discard(id)
            turn.add({"type": "opencode.answer", "question": id, "answer": answer})
        self._say("question-closed", {"questionId": id, "answer": str(answer)[:2000]})

    # --- requests ---

    def _in_background(self, fields: dict[str, Any], work: Callable[[Server, str, dict[str, Any]], Any]) -> None:
        server, session = self._supervisor.server, self._channels.get(_channel(fields))
        if server is None or session is None:
            why = "OpenCode does not run" if server is None else "there was no prompt in this channel yet"
            self._mailbox.put(lambda: self._refuse(fields, work, why))
            return

        def run() -> None:
            try:
                result = work(server, session, fields)
            except (Failed, OSError, ValueError) as error:
                why = str(error)
                self._mailbox.put(lambda: self._refuse(fields, work, why))
                return
            self._mailbox.put(lambda: self._say(*result))

        threading.Thread(target=run, daemon=True).start()

    def _refuse(self, fields: dict[str, Any], work: Any, why: str) -> None:
        if "command" in fields:
            about = {"requestId": fields["requestId"], "command": fields["command"], "error": why[:2000]}
            self._say("command-result", about)
        else:
            self._say(
                "error", {"messageId": str(fields.get("requestId") or fields.get("messageId")), "error": why[:2000]}
            )

    def _diff(self, server: Server, session: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        found = json.loads(server.request("GET", f"/session/{_quoted(session)}/diff"))
        files = [
            {
                "path": str(each.get("file", "")),
                "status": str(each.get("status") or "modified"),
                "diff": each.get("patch", ""),
            }
            for each in found
            if isinstance(each, dict)
        ]
        return "diff", {"requestId": fields["requestId"], "data": {"files": files}}

    def _revert(self, server: Server, session: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        server.ask("POST", f"/session/{_quoted(session)}/revert", {"messageID": fields["messageId"]})
        return "reverted", {"messageIds": [fields["messageId"]]}

    def _command(self, server: Server, session: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        body = {"command": fields["command"], "arguments": fields.get("args", "")}
        result = parse_object(server.request("POST", f"/session/{_quoted(session)}/command", body, 600.0))
        about = {"requestId": fields["requestId"], "command": fields["command"]}
        return "command-result", {**about, "result": {"info": result.get("info")}}


def merged(base: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration with the tools, the instructions and the providers that the hub wants."""
    made = {**base}
    denied = {name: "deny" for name, allowed in (config.get("tools") or {}).items() if not allowed}
    if denied:
        # Not as `tools`, which OpenCode puts before these rules: of several that match, the last one counts.
        made["permission"] = {**base.get("permission", {}), **denied}
    if config.get("instructions"):
        made["instructions"] = [*base.get("instructions", ()), *config["instructions"]]
    providers = {**base.get("provider", {})}
    for each in config.get("customProviders") or ():
        models = {
            model["id"]: {
                "name": model.get("name", model["id"]),
                "limit": {"context": model.get("contextLimit", 128_000), "output": model.get("outputLimit", 8192)},
            }
            for model in each["models"]
        }
        options = {"baseURL": each["baseUrl"], **({"apiKey": each["apiKey"]} if "apiKey" in each else {})}
        providers[each["providerId"]] = {
            "name": each["displayName"],
            "npm": "@ai-sdk/openai-compatible",
            "options": options,
            "models": models,
        }
    if providers:
        made["provider"] = providers
        if "enabled_providers" in base:
            made["enabled_providers"] = sorted({*base["enabled_providers"], *providers})
    return made


def _channel(fields: dict[str, Any]) -> str:
    if "channelType" not in fields:
        return _DEFAULT
    return "{}:{}".format(fields["channelType"], fields.get("channelId", "default"))


def _command_in(server: Server, text: str) -> dict[str, str] | None:
    """Returns the slash command that a prompt is, if OpenCode has one of that name."""
    name, _, arguments = text[1:].partition(" ")
    if not text.startswith("/") or not name:
        return None
    try:
        known = json.loads(server.request("GET", "/command"))
    except ValueError:
        return None
    if not any(isinstance(each, dict) and each.get("name") == name for each in known):
        return None
    return {"command": name, "arguments": arguments}


def _files(fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {name: each[name] for name in ("type", "mime", "url", "filename") if name in each}
        for each in fields.get("attachments") or ()
    ]


def _question(id: str, kind: str, about: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a question for the hub."""
    if kind == "permission.asked":
        patterns = [str(each) for each in about.get("patterns") or ()]
        text = "May it use {}{}?".format(about.get("permission"), ": " + ", ".join(patterns) if patterns else "")
        return {"questionId": id, "kind": "permission", "text": text, "options": ["once", "always", "reject"]}
    asked = [each for each in about.get("questions") or () if isinstance(each, dict)]
    text = "\n".join(str(each.get("question", "")) for each in asked)
    told: dict[str, Any] = {"questionId": id, "kind": "question", "text": text}
    if len(asked) == 1 and asked[0].get("options"):
        told["options"] = [str(each.get("label", "")) for each in asked[0]["options"] if isinstance(each, dict)]
    return told


def _count(about: dict[str, Any]) -> int:
    return max(1, len(about.get("questions") or ()))


def _reply(id: str, question: dict[str, Any], answer: Any) -> tuple[str, dict[str, Any]]:
    """Returns the path and the body by which OpenCode gets an answer."""
    if question["kind"] == "permission":
        words = {True: "once", False: "reject", EXPIRED: "reject"}
        reply = words.get(answer, answer) if isinstance(answer, (str, bool)) else "reject"
        return f"/permission/{_quoted(id)}/reply", {"reply": reply if reply in ("once", "always") else "reject"}
    if answer == EXPIRED:
        return f"/question/{_quoted(id)}/reject", {}
    answers = answer if isinstance(answer, list) else [answer] * question["count"]
    each = [[str(word) for word in words] if isinstance(words, list) else [str(words)] for words in answers]
    return f"/question/{_quoted(id)}/reply", {"answers": each}


def _events_of(messages: list[dict[str, Any]], session: str) -> list[dict[str, Any]]:
    """Returns the events that messages would have caused. What was seen before is recognised."""
    events: list[dict[str, Any]] = []
    for message in messages:
        info, parts = message.get("info"), message.get("parts") or ()
        told = {"type": "message.updated", "properties": {"sessionID": session, "info": info}}
        events.append(told)
        for part in parts:
            events.append({"type": "message.part.updated", "properties": {"sessionID": session, "part": part}})
        events.append(told)
    return events


def _objects(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _ask_quietly(server: Server, method: str, path: str, body: Any) -> None:
    with contextlib.suppress(Failed):  # the watchdogs of the turn notice if it matters
        server.ask(method, path, body)


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
