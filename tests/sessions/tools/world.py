"""The operations of sessions on the servers of `SessionWorld`, called as boxes and people call them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.runs.world import SEALS
from tests.sessions.world import SessionWorld
from tests.sessions.world import a_world as a_world_of_sessions

from holdfast.api.run.tasks import DelegationLimits
from holdfast.api.secrets import SecretRecord
from holdfast.api.tools.operation import ToolGroup
from holdfast.change_limit import ChangeLimit
from holdfast.sessions.channels.senders import Senders
from holdfast.sessions.channels.service import SessionChannels
from holdfast.sessions.session_log import SessionLog
from holdfast.sessions.tools.caller import SessionTree
from holdfast.sessions.tools.children import Children
from holdfast.sessions.tools.github import GitHub
from holdfast.sessions.tools.mailbox import Mailbox
from holdfast.sessions.tools.memories import Memories
from holdfast.sessions.tools.secret_references import SecretReferences
from holdfast.sessions.tools.service import RATE, SessionTools
from holdfast.sessions.tools.tasks import Tasks
from holdfast.sessions.workflows.engine import Executions
from holdfast.sessions.workflows.library import Library
from holdfast.sessions.workflows.operations import Workflows
from holdfast.sessions.workflows.signatures import WorkflowKeys
from holdfast.sessions.workflows.steps import StepRunner
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.session.mailbox import SqliteMessages
from holdfast.storage.sqlite.session.memories import SqliteMemories
from holdfast.storage.sqlite.session.workflows import SqliteWorkflows

ALL_TOOLS = tuple(each.value for each in ToolGroup)


class FakeSecrets:
    """Secrets in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.records: dict[str, SecretRecord] = {}

    def add(self, name: str, value: str, **more: Any) -> None:
        known = {"bindings": (), "expose": None, "placeholder": f"placeholder-of-{name}", **more}
        self.values[name] = value
        self.records[name] = SecretRecord(name=name, version=1, created_at=1, changed_at=1, changed_by="ada", **known)

    def find(self, name: str) -> SecretRecord | None:
        return self.records.get(name)

    def reveal(self, name: str) -> str:
        return self.values[name]


class ToolWorld:
    """The operations of one server. `restart` is that of the server."""

    def __init__(self, base: SessionWorld, folder: Path) -> None:
        self.base = base
        self.folder = folder
        self.databases: list[Database] = []
        self.old: list[Executions] = []
        self.secrets = FakeSecrets()
        self.forge_api = "https://api.invalid"
        self.chat_apis: dict[str, str] = {}
        self.limits = DelegationLimits(depth=3, breadth=3, boxes=6, threads=8)
        self.open()

    def open(self) -> None:
        log = self.base.base.log
        self.tree = SessionTree(SessionLog(log), self.base.base.projection)
        self.children = Children(self.base.sessions, self.tree, log, self.limits)
        database = Database(self.folder / "tools.db")
        self.databases.append(database)
        self.memory_store = SqliteMemories(database)
        self.memories = Memories(self.memory_store, log.clock, most=20)
        self.tasks = Tasks(self.base.base.store, SEALS, log, self.tree)
        self.mailbox = Mailbox(SqliteMessages(database), self.tree, self.base.sessions, log, most=5)
        self.rows = SqliteWorkflows(database)
        library, keys = Library(self.rows, log.clock), WorkflowKeys(b"k" * 32)
        self.keys = keys
        steps = StepRunner(
            self.base.base.store, log, self.base.sessions, self.base.base.runs, self.base.base.boxes, self.call_plain
        )
        self.executions = Executions(
            self.base.base.store, SEALS, log, self.rows, library, keys, steps, self.notify, sweep_seconds=3600
        )
        self.old.append(self.executions)
        self.workflows = Workflows(library, self.executions, keys, self.tree, ChangeLimit(log.clock, RATE))
        self.channels = SessionChannels(
            self.base.base.store,
            SEALS,
            log,
            self.base.sessions,
            self.secrets,
            Senders(lambda kind: self.chat_apis[kind.value]),
            ChangeLimit(log.clock, RATE),
            b"c" * 32,
            "acme~",
        )
        self.references = SecretReferences(self.secrets, self.base.sessions, self.base.base.boxes)
        self.github = GitHub(self.secrets, log, lambda host: self.forge_api)
        parts = (
            self.children,
            self.memories,
            self.tasks,
            self.mailbox,
            self.workflows,
            self.github,
            self.channels,
            self.references,
        )
        tables = [each.handlers for each in parts]
        self.tools = SessionTools(self.tree, tables, ChangeLimit(log.clock, RATE, what="it"))

    async def call_plain(self, session: str, tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return await self.tools.call(session, tool, given)

    async def notify(self, session: str, person: str, text: str, key: str) -> None:
        message = {"toUserId": person, "content": text, "messageType": "approval", "key": key}
        await self.mailbox.send(await self.tree.caller(session), message)

    async def restart(self) -> None:
        await self.base.restart()
        self.open()

    async def session(self, **more: Any) -> str:
        """A session that runs, and may use all tools."""
        return await self.base.running(tools=more.pop("tools", ALL_TOOLS), **more)

    async def call(self, session: str, tool: str, **given: Any) -> dict[str, Any]:
        """As the agent of the session calls it."""
        return await self.tools.call(session, tool, given)


@asynccontextmanager
async def a_world(folder: Path) -> AsyncIterator[ToolWorld]:
    async with a_world_of_sessions(folder, most=50) as base:
        world = ToolWorld(base, folder)
        try:
            yield world
        finally:
            for executions in world.old:
                await executions.close()
            for database in world.databases:
                await database.close()
