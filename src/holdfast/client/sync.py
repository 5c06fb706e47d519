"""The client for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.api.entries import Entry
from holdfast.boxes.sync import SyncBox
from holdfast.client.client import Client
from holdfast.client.connection import DEFAULT_RETRY_SECONDS, DEFAULT_TIMEOUT
from holdfast.sync_twin import SyncHandle, SyncIterator, SyncOwner, feed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any, Literal

    from holdfast.api.agents import AgentRecord
    from holdfast.api.box_spec import BoxSpec
    from holdfast.api.box_usage import BoxUsages
    from holdfast.api.boxes import BoxRecord, BoxRecordPage, MadeBox, Owner, Pruned, Step
    from holdfast.api.egress import DefaultList, EgressDecision, EgressDecisionPage, EnvironmentPolicy
    from holdfast.api.entries import Acknowledgement
    from holdfast.api.images import Image, ImageConfig
    from holdfast.api.interpreters import (
        InterpreterDetail,
        InterpreterInfo,
        InterpreterPage,
        LoadedState,
        RemoteExecution,
        WorkspaceTransition,
    )
    from holdfast.api.keys import CreatedKey, Key, Token
    from holdfast.api.model_apis import Api
    from holdfast.api.models import ModelAnswer, ModelRecord, ModelTrial
    from holdfast.api.network import NetworkPolicy
    from holdfast.api.run_info import RunInfo
    from holdfast.api.runs import Changes, Diagnosis, Launched, RunPage, Steered
    from holdfast.api.runtime_tests import RuntimeReport
    from holdfast.api.snapshots import Snapshot, Volume
    from holdfast.api.threads import EntryPage, ThreadInfo, ThreadPage
    from holdfast.boxes.box import Deleted
    from holdfast.client.agents import AgentStore
    from holdfast.client.backoff import RetryNotice
    from holdfast.client.box.boxes import Boxes
    from holdfast.client.box.volumes import Volumes
    from holdfast.client.connection import FindAgain
    from holdfast.client.egress import Egress
    from holdfast.client.images import Images
    from holdfast.client.interpreters import Interpreters, OnOutput
    from holdfast.client.keys import Keys
    from holdfast.client.models import ModelStore
    from holdfast.client.resource import BoxConnection
    from holdfast.client.runs import Runs
    from holdfast.client.thread.tail import Tail
    from holdfast.client.thread.thread import Appendable, Thread
    from holdfast.client.thread.threads import Archived, Labels, Threads
    from holdfast.client.transport import Transport
    from holdfast.images.progress import Progress


class SyncClient(SyncOwner):
    """`Client` for code without `await`."""

    _async: Client

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        on_retry: Callable[[RetryNotice], None] | None = None,
        find_again: FindAgain | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._own(
            lambda: Client(
                url,
                api_key=api_key,
                timeout=timeout,
                retry_seconds=retry_seconds,
                on_retry=on_retry,
                find_again=find_again,
                transport=transport,
            )
        )

    @property
    def agents(self) -> SyncAgentStore:
        return SyncAgentStore._wrap(self._async.agents, self)

    @property
    def threads(self) -> SyncThreads:
        return SyncThreads._wrap(self._async.threads, self)

    @property
    def keys(self) -> SyncKeys:
        return SyncKeys._wrap(self._async.keys, self)

    @property
    def boxes(self) -> SyncBoxes:
        return SyncBoxes._wrap(self._async.boxes, self)

    @property
    def egress(self) -> SyncEgress:
        return SyncEgress._wrap(self._async.egress, self)

    @property
    def images(self) -> SyncImages:
        return SyncImages._wrap(self._async.images, self)

    @property
    def models(self) -> SyncModelStore:
        return SyncModelStore._wrap(self._async.models, self)

    @property
    def runs(self) -> SyncRuns:
        return SyncRuns._wrap(self._async.runs, self)

    @property
    def interpreters(self) -> SyncInterpreters:
        return SyncInterpreters._wrap(self._async.interpreters, self)

    @property
    def url(self) -> str:
        return self._async.url

    @property
    def has_credential(self) -> bool:
        """Whether it sends one. A server that asks for none needs none in its links either."""
        return self._async.has_credential

    def thread(self, id: str) -> SyncThread:
        """A handle on a thread; asks nothing yet."""
        return SyncThread._wrap(self._async.thread(id), self)

    def box_resource(self, name: str) -> BoxConnection:
        """How one box is asked, by its id or, for exec, by its key; asks nothing yet."""
        return self._async.box_resource(name)

    def health(self) -> dict[str, Any]:
        """What the server says of itself; needs no credential."""
        return self._loop.run(self._async.health())

    def renew_token(self) -> Token:
        """Exchange the thread token this client uses for a fresh one, and use that from now on."""
        return self._loop.run(self._async.renew_token())

    def close(self) -> None:
        """Let go of all connections. Closing twice does nothing."""
        self._end(self._async.aclose)

    def __enter__(self) -> Self:
        return self

    def _leave(self) -> None:
        self.close()


class SyncThreads(SyncHandle):
    """`Threads` for code without `await`."""

    _async: Threads

    def create(
        self,
        *,
        title: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> SyncThread:
        """Make a thread, and return a handle on it. `Conflict` where the id is taken."""
        return SyncThread._wrap(
            self._loop.run(self._async.create(title=title, parent=parent, labels=labels, id=id)), self
        )

    def list(
        self,
        *,
        parent: str | None = None,
        status: str | None = None,
        labels: Labels | None = None,
        archived: Archived = False,
        limit: int | None = None,
    ) -> SyncIterator[ThreadInfo]:
        """All threads that fit, or the first `limit` of them, those with the newest activity first."""
        return SyncIterator._wrap(
            self._async.list(parent=parent, status=status, labels=labels, archived=archived, limit=limit), self
        )

    def page(
        self,
        *,
        parent: str | None = None,
        status: str | None = None,
        labels: Labels | None = None,
        archived: Archived = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> ThreadPage:
        """Up to `limit` threads at once (200 at most), and where the next ones are."""
        return self._loop.run(
            self._async.page(parent=parent, status=status, labels=labels, archived=archived, cursor=cursor, limit=limit)
        )

    def get(self, id: str) -> ThreadInfo:
        return self._loop.run(self._async.get(id))

    def rename(self, id: str, title: str) -> ThreadInfo:
        return self._loop.run(self._async.rename(id, title))

    def update(self, id: str, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        return self._loop.run(self._async.update(id, labels=labels, archived=archived))

    def delete(self, id: str) -> None:
        self._loop.run(self._async.delete(id))

    def token(self, id: str, scope: str = "read", *, ttl_seconds: int = 7200) -> Token:
        return self._loop.run(self._async.token(id, scope, ttl_seconds=ttl_seconds))


class SyncThread(SyncHandle):
    """`Thread` for code without `await`."""

    _async: Thread

    @property
    def id(self) -> str:
        return self._async.id

    def append(self, what: Appendable | Sequence[Appendable], *, author_id: str | None = None) -> Acknowledgement:
        """Append entries, and return when they are on the server's disk.

        All or none of them are written where they fit in one request: 20,000 entries and 16 MiB. More are sent in
        several requests, in order, and nothing of this handle comes between them.

        A payload gets an id and a time here; an `Entry` keeps its own, and is dropped where the thread has it already.
        Lost connections and overload are retried; `Unreachable` tells which entries nobody acknowledged.
        """
        return self._loop.run(self._async.append(what, author_id=author_id))

    def append_encoded(self, entries: Sequence[bytes]) -> None:
        """The same for whole entries that are JSON already, each with an id of its own."""
        self._loop.run(self._async.append_encoded(entries))

    def chat(self, text: str, *, author_id: str | None = None) -> Entry:
        """Say something as the user."""
        return self._loop.run(self._async.chat(text, author_id=author_id))

    def entries(
        self, *, types: str | Sequence[str] = (), since: str | None = None, limit: int | None = None, live: bool = False
    ) -> SyncIterator[Entry]:
        """The entries there are, oldest first: from an offset on, of some types (`chat`, `pi.*`), at most so many.

        `live`: with the text that agents say as it came, piece by piece, before each whole message.
        """
        return SyncIterator._wrap(self._async.entries(types=types, since=since, limit=limit, live=live), self)

    def page(
        self,
        *,
        types: str | Sequence[str] = (),
        since: str | None = None,
        limit: int = 100,
        live: bool = False,
        unfinished: bool = False,
    ) -> EntryPage:
        """Up to `limit` entries at once (1000 at most), and where the next ones are.

        `unfinished`: the last page also has the pieces of a message that is not whole yet. A tail from there goes on
        with the next piece.
        """
        return self._loop.run(self._async.page(types=types, since=since, limit=limit, live=live, unfinished=unfinished))

    def tail(self, *, since: str | None = None, patience: float | None = None) -> SyncTail:
        """Follow the thread from an offset on (the beginning, unless told), as entries come.

        Lost connections are taken up again without gap or repetition, for as long as it takes, or for `patience`
        seconds at a time.
        """
        return SyncTail._wrap(self._async.tail(since=since, patience=patience), self)

    def info(self) -> ThreadInfo:
        return self._loop.run(self._async.info())

    def rename(self, title: str) -> ThreadInfo:
        return self._loop.run(self._async.rename(title))

    def update(self, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        """Replace the labels, archive the thread or bring it back; what is None stays."""
        return self._loop.run(self._async.update(labels=labels, archived=archived))

    def delete(self) -> None:
        """Delete the thread and all its entries, for good."""
        self._loop.run(self._async.delete())

    def token(self, scope: str = "read", *, ttl_seconds: int = 7200) -> Token:
        """A credential for this thread alone, to `read` it or to `write` to it too. Needs an API key."""
        return self._loop.run(self._async.token(scope, ttl_seconds=ttl_seconds))

    def link(self, *, ttl_seconds: int = 24 * 3600) -> str:
        """The address of this thread's page, with a key to read it in the part that browsers never send."""
        return self._loop.run(self._async.link(ttl_seconds=ttl_seconds))


class SyncTail(SyncIterator[Entry]):
    """`Tail` for code without `await`."""

    _async: Tail

    @property
    def offset(self) -> str:
        """Where to go on after the entry that was handed out last: `thread.tail(since=tail.offset)`."""
        return self._async.offset

    def close(self) -> None:
        """Stop following. The offset stays known. Closing twice does nothing."""
        self._loop.run(self._async.aclose())

    def __enter__(self) -> Self:
        """Entering fixes what `now` means, so that nothing written afterwards is missed."""
        self._loop.run(self._async.__aenter__())
        return self

    def _leave(self) -> None:
        self.close()


class SyncKeys(SyncHandle):
    """`Keys` for code without `await`."""

    _async: Keys

    def create(self, name: str) -> CreatedKey:
        """A new key. Its `secret` is told this once: the server keeps only a digest."""
        return self._loop.run(self._async.create(name))

    def list(self) -> list[Key]:
        return self._loop.run(self._async.list())

    def revoke(self, id: str) -> None:
        """The key stops working, on all servers of the store."""
        self._loop.run(self._async.revoke(id))


class SyncBoxes(SyncHandle):
    """`Boxes` for code without `await`."""

    _async: Boxes

    @property
    def volumes(self) -> SyncVolumes:
        return SyncVolumes._wrap(self._async.volumes, self)

    def create(
        self,
        spec: BoxSpec | None = None,
        *,
        key: str | None = None,
        fresh: bool = False,
        replaces: bool = True,
        owner: Owner | None = None,
    ) -> MadeBox:
        """Make a box; with a key, acquire the one of that key: resumed, restored or created. `fresh`: the one that
        there is gets deleted, and the new one has nothing of it. Not `replaces`: one of another spec is a
        `BoxDiffers`, and stays.
        """
        return self._loop.run(self._async.create(spec, key=key, fresh=fresh, replaces=replaces, owner=owner))

    def get(self, id: str) -> BoxRecord:
        """A box, dead or alive. Raises `BoxNotFound`."""
        return self._loop.run(self._async.get(id))

    def open(self, id: str) -> SyncBox:
        """A handle on a box that is there. Raises `BoxNotFound`, `BoxGone`."""
        return SyncBox._wrap(self._loop.run(self._async.open(id)), self)

    def handle(self, record: BoxRecord, *, env: Mapping[str, str] | None = None) -> SyncBox:
        """A handle on a box that the server just told of; asks nothing. `env` is that of its spec, if it is known."""
        return SyncBox._wrap(self._async.handle(record, env=env), self)

    def page(
        self,
        *,
        states: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        all: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> BoxRecordPage:
        """Up to `limit` boxes at once (200 at most), and where the next ones are."""
        return self._loop.run(
            self._async.page(states=states, labels=labels, key=key, all=all, cursor=cursor, limit=limit)
        )

    def stop(self, id: str) -> BoxRecord:
        """End every process in a box. Its files stay."""
        return self._loop.run(self._async.stop(id))

    def start(self, id: str) -> BoxRecord:
        """Start a stopped box on its files."""
        return self._loop.run(self._async.start(id))

    def delete(self, id: str) -> Deleted:
        """Delete a box and everything of its own. Deleting twice is fine."""
        return self._loop.run(self._async.delete(id))

    def set_network(self, id: str, policy: NetworkPolicy) -> BoxRecord:
        """Change what a box may reach, from now on."""
        return self._loop.run(self._async.set_network(id, policy))

    def fork(
        self, id: str, *, owner: Owner | None = None, key: str | None = None, idle_seconds: int | None = None
    ) -> BoxRecord:
        """Another box with the same spec and files; of a key, where one is given that has no box yet. With
        `idle_seconds` it is ephemeral, whatever the first one is.
        """
        return self._loop.run(self._async.fork(id, owner=owner, key=key, idle_seconds=idle_seconds))

    def prune(self) -> Pruned:
        """Delete idle and stopped ephemeral boxes, and leftovers, now."""
        return self._loop.run(self._async.prune())

    def usage(self) -> BoxUsages:
        """What all boxes use now."""
        return self._loop.run(self._async.usage())

    def diagnose(self, id: str | None = None, *, provider: str = "local") -> list[Step]:
        """What works and what does not: of a provider, or of one box."""
        return self._loop.run(self._async.diagnose(id, provider=provider))

    def snapshot(self, id: str, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Keep the files of a box as they are now."""
        return self._loop.run(self._async.snapshot(id, labels=labels))

    def snapshots(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        """All snapshots, or those of a box or a key, the oldest first."""
        return self._loop.run(self._async.snapshots(box=box, key=key))

    def delete_snapshot(self, id: str) -> int:
        """Forget a snapshot; says how many bytes that freed."""
        return self._loop.run(self._async.delete_snapshot(id))

    def restore(self, snapshot: str, spec: BoxSpec | None = None, *, owner: Owner | None = None) -> BoxRecord:
        """Make a box that begins with a snapshot's files, as the box that it was taken of, or by another spec."""
        return self._loop.run(self._async.restore(snapshot, spec, owner=owner))

    def export_snapshot(self, id: str) -> SyncIterator[bytes]:
        """A snapshot by value, piece by piece."""
        return SyncIterator._wrap(self._async.export_snapshot(id), self)

    def import_snapshot(self, stream: Iterable[bytes], *, provider: str = "local") -> Snapshot:
        """Take in a snapshot that was exported, here or elsewhere."""
        return self._loop.run(self._async.import_snapshot(feed(stream), provider=provider))

    def list(
        self,
        *,
        states: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        all: bool = False,
        limit: int | None = None,
    ) -> SyncIterator[BoxRecord]:
        """Boxes that fit, or the first `limit` of them, the newest first. With `all`, those that are no more, too."""
        return SyncIterator._wrap(self._async.list(states=states, labels=labels, key=key, all=all, limit=limit), self)


class SyncVolumes(SyncHandle):
    """`Volumes` for code without `await`."""

    _async: Volumes

    def create(self, name: str, *, provider: str = "local") -> Volume:
        return self._loop.run(self._async.create(name, provider=provider))

    def delete(self, name: str, *, provider: str = "local") -> int:
        """Delete a volume. Returns the bytes freed."""
        return self._loop.run(self._async.delete(name, provider=provider))

    def list(self, *, provider: str = "local") -> list[Volume]:
        return self._loop.run(self._async.list(provider=provider))


class SyncImages(SyncHandle):
    """`Images` for code without `await`."""

    _async: Images

    def get(self, name: str, *, provider: str = "local") -> Image:
        """By name or digest."""
        return self._loop.run(self._async.get(name, provider=provider))

    def import_archive(self, name: str, archive: Iterable[bytes] | bytes, *, provider: str = "local") -> Image:
        """A root filesystem tarball, an OCI layout or what `docker save` writes, compressed or not.

        Raises `HostileArchive`, `BadArchive`, `NoSpace`, and leaves nothing then.
        """
        return self._loop.run(self._async.import_archive(name, feed(archive), provider=provider))

    def pull(
        self,
        name: str,
        *,
        save_as: str | None = None,
        credentials: tuple[str, str] | None = None,
        insecure: bool = False,
        provider: str = "local",
        progress: Progress | None = None,
    ) -> Image:
        """Pull an image from a registry, by its name as Docker understands it, under that name or `save_as`.

        The server fetches it. `credentials` are a user and a password for the registry; they are used for this pull
        and not kept. `insecure` allows plain HTTP, which on loopback needs no asking. Raises `NotInRegistry`,
        `RegistryRefused`, `RegistryFailed`, `HostileArchive`, `BadArchive`, `NoSpace`.
        """
        return self._loop.run(
            self._async.pull(
                name, save_as=save_as, credentials=credentials, insecure=insecure, provider=provider, progress=progress
            )
        )

    def from_snapshot(
        self,
        snapshot: str,
        name: str,
        *,
        config: ImageConfig | None = None,
        labels: Mapping[str, str] | None = None,
        provider: str = "local",
    ) -> Image:
        """Name a snapshot's files as an image. Without a config: that of the snapshot's own image."""
        return self._loop.run(
            self._async.from_snapshot(snapshot, name, config=config, labels=labels, provider=provider)
        )

    def remove(self, name: str, *, provider: str = "local") -> int:
        """Forget a name; says how many bytes that freed."""
        return self._loop.run(self._async.remove(name, provider=provider))

    def list(self, *, provider: str = "local") -> list[Image]:
        """All of them, by name."""
        return self._loop.run(self._async.list(provider=provider))


class SyncEgress(SyncHandle):
    """`Egress` for code without `await`."""

    _async: Egress

    def set(self, environment: str, policy: NetworkPolicy) -> EnvironmentPolicy:
        """The policy of an environment, from now on, for its running boxes too."""
        return self._loop.run(self._async.set(environment, policy))

    def get(self, environment: str) -> EnvironmentPolicy:
        """Raises `PolicyNotFound`."""
        return self._loop.run(self._async.get(environment))

    def remove(self, environment: str) -> None:
        """Raises `PolicyNotFound`."""
        self._loop.run(self._async.remove(environment))

    def policies(self) -> list[EnvironmentPolicy]:
        """All of them, by name."""
        return self._loop.run(self._async.policies())

    def default(self) -> DefaultList:
        """What `default` stands for on the server's machine."""
        return self._loop.run(self._async.default())

    def page(
        self, box: str, *, denied_only: bool = False, cursor: str | None = None, limit: int = 50
    ) -> EgressDecisionPage:
        """Up to `limit` decisions about a box at once (200 at most), and where the next ones are."""
        return self._loop.run(self._async.page(box, denied_only=denied_only, cursor=cursor, limit=limit))

    def decisions(
        self, box: str, *, denied_only: bool = False, limit: int | None = None
    ) -> SyncIterator[EgressDecision]:
        """What was decided about what a box asked for, the newest first: all that is kept, or `limit` of it."""
        return SyncIterator._wrap(self._async.decisions(box, denied_only=denied_only, limit=limit), self)


class SyncModelStore(SyncHandle):
    """`ModelStore` for code without `await`."""

    _async: ModelStore

    def list(self) -> list[ModelRecord]:
        """Those that can be used first."""
        return self._loop.run(self._async.list())

    def get(self, name: str) -> ModelRecord:
        return self._loop.run(self._async.get(name))

    def add(
        self,
        name: str,
        *,
        apis: Sequence[Api] = (),
        base_url: str | None = None,
        key: str | None = None,
        model: str | None = None,
        context_window: int | None = None,
        max_tokens: int | None = None,
    ) -> ModelRecord:
        """Add a model, or change one: what is left out stays. For a provider that is built in, a key is enough."""
        return self._loop.run(
            self._async.add(
                name,
                apis=apis,
                base_url=base_url,
                key=key,
                model=model,
                context_window=context_window,
                max_tokens=max_tokens,
            )
        )

    def remove(self, name: str) -> None:
        """Forget a model and its key."""
        self._loop.run(self._async.remove(name))

    def test(self, name: str, *, model: str | None = None, api: Api | None = None) -> ModelTrial:
        """Ask it one small question, from the server, by the way that agents go."""
        return self._loop.run(self._async.test(name, model=model, api=api))

    def complete(
        self, messages: Sequence[Mapping[str, str]], *, model: str | None = None, timeout: float = 60.0
    ) -> ModelAnswer:
        """Ask a model something, from the server: `role` and `content` of each message. `model` is `NAME` or
        `NAME/MODEL`, or the only one there is.
        """
        return self._loop.run(self._async.complete(messages, model=model, timeout=timeout))


class SyncAgentStore(SyncHandle):
    """`AgentStore` for code without `await`."""

    _async: AgentStore

    def list(self) -> list[AgentRecord]:
        return self._loop.run(self._async.list())

    def get(self, name: str) -> AgentRecord:
        return self._loop.run(self._async.get(name))


class SyncRuns(SyncHandle):
    """`Runs` for code without `await`."""

    _async: Runs

    def upload(self, folder: Path, *, leave_out: Callable[[Path], bool] = lambda path: False) -> str:
        """Keep a folder for workspaces to begin with; says its digest. `leave_out` is asked of each path below it."""
        return self._loop.run(self._async.upload(folder, leave_out=leave_out))

    def upload_tar(self, archive: Iterable[bytes]) -> str:
        """The same for files that are a tar archive already."""
        return self._loop.run(self._async.upload_tar(feed(archive)))

    def check(
        self, *, agent: str, model: str | None = None, thread: str | None = None, box: Mapping[str, Any] | None = None
    ) -> str:
        """The model (`NAME/MODEL`) that a run would use; raises what `launch` would raise. Begins nothing."""
        return self._loop.run(self._async.check(agent=agent, model=model, thread=thread, box=box))

    def launch(
        self,
        prompt: str,
        *,
        agent: str,
        model: str | None = None,
        thread: str | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        workspace: str | None = None,
        box: Mapping[str, Any] | None = None,
        timeout: int | None = None,
        author_id: str | None = None,
    ) -> Launched:
        """Begin a run, on a thread that is there or on a new one. Returns once its prompt is on the server's disk.

        `workspace` is a digest that `upload` gave. `box` says what the box is to be, as the server takes it:
        provider, image, cpu, memory, disk, pids, network, workdir, idleSeconds. `timeout`: seconds after which the run
        is ended, whoever is gone by then.
        """
        return self._loop.run(
            self._async.launch(
                prompt,
                agent=agent,
                model=model,
                thread=thread,
                title=title,
                labels=labels,
                workspace=workspace,
                box=box,
                timeout=timeout,
                author_id=author_id,
            )
        )

    def resume(
        self,
        id: str,
        prompt: str | None = None,
        *,
        agent: str | None = None,
        model: str | None = None,
        fresh: bool = False,
        box: Mapping[str, Any] | None = None,
        network: Mapping[str, Any] | None = None,
        memory: int | None = None,
        disk: int | None = None,
        timeout: int | None = None,
        author_id: str | None = None,
    ) -> Launched:
        """Go on with a thread: as before, or with another agent, in a new box, or with another network or limits.

        `memory` and `disk` are bytes, `timeout` is seconds, and 0 none.
        """
        return self._loop.run(
            self._async.resume(
                id,
                prompt,
                agent=agent,
                model=model,
                fresh=fresh,
                box=box,
                network=network,
                memory=memory,
                disk=disk,
                timeout=timeout,
                author_id=author_id,
            )
        )

    def steer(self, id: str, prompt: str, *, interrupt: bool = False, author_id: str | None = None) -> Steered:
        """A prompt for a run that goes on: it waits for its end, or brings that about. `how` says what became of it."""
        return self._loop.run(self._async.steer(id, prompt, interrupt=interrupt, author_id=author_id))

    def cancel(self, id: str, *, by: str | None = None) -> RunInfo:
        """End a run. One that has ended stays as it is."""
        return self._loop.run(self._async.cancel(id, by=by))

    def get(self, id: str) -> RunInfo:
        return self._loop.run(self._async.get(id))

    def wait(self, id: str) -> RunInfo:
        """The run, once it has ended. To see it work, follow its thread."""
        return self._loop.run(self._async.wait(id))

    def diagnose(self, id: str) -> Diagnosis:
        """How far a run came, what is wrong with it, and what to do."""
        return self._loop.run(self._async.diagnose(id))

    def changes(self, id: str) -> Changes:
        """The workspace of a thread now, against what it began with."""
        return self._loop.run(self._async.changes(id))

    def patch(self, id: str) -> SyncIterator[bytes]:
        """What `git apply` makes the workspace as it is now of what it began with, in pieces."""
        return SyncIterator._wrap(self._async.patch(id), self)

    def page(
        self,
        *,
        thread: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> RunPage:
        """Up to `limit` runs at once (200 at most), and where the next ones are."""
        return self._loop.run(self._async.page(thread=thread, status=status, agent=agent, cursor=cursor, limit=limit))

    def list(
        self,
        *,
        thread: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
    ) -> SyncIterator[RunInfo]:
        """All runs that fit, or the first `limit` of them, the newest first."""
        return SyncIterator._wrap(self._async.list(thread=thread, status=status, agent=agent, limit=limit), self)


class SyncInterpreters(SyncHandle):
    """`Interpreters` for code without `await`."""

    _async: Interpreters

    def create(
        self,
        *,
        template: str | None = None,
        model: str | None = None,
        box: Mapping[str, Any] | None = None,
        repo_url: str | None = None,
        ref: str | None = None,
        volume: str | None = None,
        output_fields: Sequence[Mapping[str, str]] | None = None,
        timeout: float | None = None,
        restore: Literal["fork"] | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> InterpreterDetail:
        """Make one, with a box and a Python in it. `box` is as for runs: provider, image, cpu, memory, network…
        `restore="fork"`: code that has to be killed costs no state.
        """
        return self._loop.run(
            self._async.create(
                template=template,
                model=model,
                box=box,
                repo_url=repo_url,
                ref=ref,
                volume=volume,
                output_fields=output_fields,
                timeout=timeout,
                restore=restore,
                title=title,
                labels=labels,
            )
        )

    def get(self, id: str) -> InterpreterDetail:
        """With what its thread tells: executions, calls, tokens."""
        return self._loop.run(self._async.get(id))

    def execute(
        self,
        id: str,
        code: str,
        *,
        variables: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        execution_id: str | None = None,
    ) -> RemoteExecution:
        """Run code to its end; `on_output` is given what it prints as it comes.

        A connection that is lost is made again, and the code runs once all the same.
        """
        return self._loop.run(
            self._async.execute(
                id, code, variables=variables, timeout=timeout, on_output=on_output, execution_id=execution_id
            )
        )

    def interrupt(self, id: str) -> None:
        """KeyboardInterrupt in the code that runs, if any does."""
        self._loop.run(self._async.interrupt(id))

    def reset(self, id: str) -> None:
        """Empty its memory: a new Python in the same box. Code that runs is ended."""
        self._loop.run(self._async.reset(id))

    def configure_workspace(
        self,
        id: str,
        *,
        repo_url: str | None = None,
        ref: str | None = None,
        volume: str | None = None,
        force_new: bool = False,
    ) -> WorkspaceTransition:
        """Change what it works on, in place. Returns what became of its box, and why."""
        return self._loop.run(
            self._async.configure_workspace(id, repo_url=repo_url, ref=ref, volume=volume, force_new=force_new)
        )

    def export_state(self, id: str) -> SyncIterator[bytes]:
        """What it has in memory, piece by piece: for `import_state`, of this one or another."""
        return SyncIterator._wrap(self._async.export_state(id), self)

    def import_state(self, id: str, state: Iterable[bytes] | bytes) -> LoadedState:
        """Replace all that it has in memory. Returns the names that were loaded, and those that could not be."""
        return self._loop.run(self._async.import_state(id, feed(state)))

    def delete(self, id: str) -> None:
        """Delete its box and all that it has in memory. Its thread stays."""
        self._loop.run(self._async.delete(id))

    def page(self, *, deleted: bool = False, cursor: str | None = None, limit: int = 50) -> InterpreterPage:
        """Up to `limit` interpreters at once (200 at most), and where the next ones are."""
        return self._loop.run(self._async.page(deleted=deleted, cursor=cursor, limit=limit))

    def test_box(
        self, *, box: Mapping[str, Any] | None = None, repo_url: str | None = None, ref: str | None = None
    ) -> RuntimeReport:
        """Whether interpreters work here: each phase, timed, with what is wrong."""
        return self._loop.run(self._async.test_box(box=box, repo_url=repo_url, ref=ref))

    def test_model(self, *, model: str | None = None) -> RuntimeReport:
        """Whether a model answers."""
        return self._loop.run(self._async.test_model(model=model))

    def list(self, *, deleted: bool = False, limit: int | None = None) -> SyncIterator[InterpreterInfo]:
        """All interpreters, those of scripts and notebooks too, or the first `limit`, the latest active first."""
        return SyncIterator._wrap(self._async.list(deleted=deleted, limit=limit), self)
