"""The operations of sessions on this server: what they are made of, and the routes of the internal API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.api.errors import InvalidRequest
from holdfast.api.run.tasks import DelegationLimits
from holdfast.api.tools.catalogue import ALL
from holdfast.api.tools.operation import Operation
from holdfast.boxes.service.boxes import Boxes
from holdfast.change_limit import ChangeLimit
from holdfast.gateway.internal_api import InternalRequest, InternalRoute
from holdfast.repositories.forge import api_of
from holdfast.runs.run_log import RunLog
from holdfast.runs.service import Runs
from holdfast.server.lazy import load_in_thread
from holdfast.sessions.channels.senders import APIS, Senders
from holdfast.sessions.channels.service import SessionChannels
from holdfast.sessions.service import Sessions
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
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection

if TYPE_CHECKING:
    from holdfast.environments.secrets import Secrets
    from holdfast.storage import Storage


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The operations, and the services behind them that people use too."""

    operations: SessionTools
    mailbox: Mailbox
    workflows: Workflows
    channels: SessionChannels
    clock: Callable[[], int]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        storage: Storage,
        projection: Projection,
        seals: Seals,
        boxes: Boxes,
        runs: Runs,
        sessions: Sessions,
        run_log: RunLog,
        limits: DelegationLimits,
        secret: bytes,
        secrets: Secrets,
        apis: Mapping[str, str],
        hook_mark: str = "",
        *,
        public_only: bool = False,
    ) -> AsyncIterator[ServerTools]:
        """From `secret`, the keys of webhooks are derived. `hook_mark` is how names of webhooks begin. With
        `public_only`, git hosts have to be on the internet. Executions outlive the service.
        """
        tree = SessionTree(SessionLog(run_log), projection)
        memories, messages, rows = await load_in_thread(lambda: (storage.memories, storage.messages, storage.workflows))
        mailbox = Mailbox(messages, tree, sessions, run_log)

        async def call(session: str, tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
            return await operations.call(session, tool, given)

        async def notify(session: str, person: str, text: str, key: str) -> None:
            message = {"toUserId": person, "content": text, "messageType": "approval", "key": key}
            await mailbox.send(await tree.caller(session), message)

        library, keys = Library(rows, run_log.clock), WorkflowKeys(secret)
        steps = StepRunner(storage.streams, run_log, sessions, runs, boxes, call)
        executions = Executions(storage.streams, seals, run_log, rows, library, keys, steps, notify)
        workflows = Workflows(library, executions, keys, tree, ChangeLimit(run_log.clock, RATE), hook_mark)
        senders = Senders(lambda kind: apis.get(kind.value) or APIS[kind])
        messages_in = ChangeLimit(run_log.clock, RATE)
        channels = SessionChannels(
            storage.streams, seals, run_log, sessions, secrets, senders, messages_in, secret, hook_mark
        )
        parts = (
            Children(sessions, tree, run_log, limits),
            Memories(memories, run_log.clock),
            Tasks(storage.streams, seals, run_log, tree),
            mailbox,
            workflows,
            GitHub(secrets, run_log, partial(forge_api, apis=apis), public_only=public_only),
            channels,
            SecretReferences(secrets, sessions, boxes),
        )
        limit = ChangeLimit(run_log.clock, RATE, what="what this session")
        operations = SessionTools(tree, [each.handlers for each in parts], limit)
        await executions.start()
        try:
            yield cls(operations, mailbox, workflows, channels, run_log.clock)
        finally:
            await executions.close()


def parse_apis(texts: Sequence[str]) -> dict[str, str]:
    """Returns the base URLs of APIs by git host or service, from `NAME=URL`. Raises `InvalidRequest`."""
    found: dict[str, str] = {}
    for each in texts:
        host, equals, url = each.partition("=")
        if not host or not equals or not url.startswith(("https://", "http://")):
            raise InvalidRequest(f"invalid API {each[:200]!r}", hint="--service-api HOST=https://HOST/api/v3")
        found[host.lower()] = url
    return found


def forge_api(host: str, apis: Mapping[str, str]) -> str:
    """Returns the base URL of the API of a git host. `apis` has those that do not follow from the host."""
    return apis.get(host) or api_of(host)


def internal_routes(tools: Callable[[], Awaitable[SessionTools]]) -> tuple[InternalRoute, ...]:
    """Returns the routes of all operations for the internal API."""
    return tuple(InternalRoute(each.method, each.path, _answer(each, tools)) for each in ALL if each.route)


def _answer(
    operation: Operation, tools: Callable[[], Awaitable[SessionTools]]
) -> Callable[[InternalRequest], Awaitable[Mapping[str, Any]]]:
    is_query = operation.method in ("GET", "DELETE")

    async def answer(request: InternalRequest) -> Mapping[str, Any]:
        given = {**(request.query if is_query else request.body), **request.path}
        return await (await tools()).call(request.session.thread, operation.name, given, from_text=is_query)

    return answer
