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
        """Whether this client sends a credential. A server that requires none needs none in its links either."""
        return self._async.has_credential

    def thread(self, id: str) -> SyncThread:
        """Returns a handle on a thread, without a request."""
        return SyncThread._wrap(self._async.thread(id), self)

    def box_resource(self, name: str) -> BoxConnection:
        """Returns the resource of one box, by its id or, for exec, by its key, without a request."""
        return self._async.box_resource(name)

    def health(self) -> dict[str, Any]:
        """Returns the health of the server. Needs no credential."""
        return self._loop.run(self._async.health())

    def renew_token(self) -> Token:
        """Exchange this client's thread token for a new one, and use that from now on."""
        return self._loop.run(self._async.renew_token())

    def close(self) -> None:
        """Close all connections. Closing twice does nothing."""
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
        """Create a thread, and return a handle on it. Raises `Conflict` if the id is taken."""
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
        """Yields matching threads, latest activity first, at most `limit`."""
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
        """Returns up to `limit` threads (200 at most) and the cursor of the next page."""
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

        Up to 20,000 entries and 16 MiB fit in one request, and all or none of them are written. More are sent in
        several requests, in order, with no other append of this handle in between.

        A payload gets an id and a time here. An `Entry` keeps its own, and is skipped if the thread already has its id.
        Lost connections and overload are retried. `Unreachable` lists the entries that were not acknowledged.
        """
        return self._loop.run(self._async.append(what, author_id=author_id))

    def append_encoded(self, entries: Sequence[bytes]) -> None:
        """Like `append`, for complete entries that are already JSON, each with its own id."""
        self._loop.run(self._async.append_encoded(entries))

    def chat(self, text: str, *, author_id: str | None = None) -> Entry:
        """Append a chat message as the user."""
        return self._loop.run(self._async.chat(text, author_id=author_id))

    def entries(
        self, *, types: str | Sequence[str] = (), since: str | None = None, limit: int | None = None, live: bool = False
    ) -> SyncIterator[Entry]:
        """Yields the existing entries, oldest first: from an offset, of some types (`chat`, `pi.*`), at most `limit`.

        With `live`, includes the streamed pieces of agent messages, before each complete message.
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
        """Returns up to `limit` entries (1000 at most) and the offset of the next page.

        With `unfinished`, the last page also has the pieces of a message that is not complete yet. A tail from there
        continues with the next piece.
        """
        return self._loop.run(self._async.page(types=types, since=since, limit=limit, live=live, unfinished=unfinished))

    def tail(self, *, since: str | None = None, patience: float | None = None) -> SyncTail:
        """Follow the thread from an offset (by default, the beginning) as entries are written.

        Lost connections are resumed without gaps or repetition, without a time limit or for at most `patience` seconds
        each time.
        """
        return SyncTail._wrap(self._async.tail(since=since, patience=patience), self)

    def info(self) -> ThreadInfo:
        return self._loop.run(self._async.info())

    def rename(self, title: str) -> ThreadInfo:
        return self._loop.run(self._async.rename(title))

    def update(self, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        """Replace the labels, and archive or unarchive the thread. What is None stays as it is."""
        return self._loop.run(self._async.update(labels=labels, archived=archived))

    def delete(self) -> None:
        """Delete the thread and all its entries permanently."""
        self._loop.run(self._async.delete())

    def token(self, scope: str = "read", *, ttl_seconds: int = 7200) -> Token:
        """Issue a credential for this thread alone, to `read` it or also to `write` to it. Needs an API key."""
        return self._loop.run(self._async.token(scope, ttl_seconds=ttl_seconds))

    def link(self, *, ttl_seconds: int = 24 * 3600) -> str:
        """Returns the URL of this thread's page, with a read key in the fragment, which browsers never send."""
        return self._loop.run(self._async.link(ttl_seconds=ttl_seconds))


class SyncTail(SyncIterator[Entry]):
    """`Tail` for code without `await`."""

    _async: Tail

    @property
    def offset(self) -> str:
        """The position after the last entry returned: `thread.tail(since=tail.offset)`."""
        return self._async.offset

    def close(self) -> None:
        """Stop following. The offset stays known. Closing twice does nothing."""
        self._loop.run(self._async.aclose())

    def __enter__(self) -> Self:
        """Resolve `now` on entry, so that nothing written afterwards is missed."""
        self._loop.run(self._async.__aenter__())
        return self

    def _leave(self) -> None:
        self.close()


class SyncKeys(SyncHandle):
    """`Keys` for code without `await`."""

    _async: Keys

    def create(self, name: str) -> CreatedKey:
        """Create a key. Its `secret` is returned only once, because the server stores only a digest."""
        return self._loop.run(self._async.create(name))

    def list(self) -> list[Key]:
        return self._loop.run(self._async.list())

    def revoke(self, id: str) -> None:
        """Revoke a key on all servers that share the storage."""
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
        """Create a box. With a key, acquire the box of that key: it is resumed, restored or created.

        `fresh` deletes an existing box of the key first, and the new one shares nothing with it. Without `replaces`,
        raises `BoxDiffers` if the existing box has another spec, and keeps that box.
        """
        return self._loop.run(self._async.create(spec, key=key, fresh=fresh, replaces=replaces, owner=owner))

    def get(self, id: str) -> BoxRecord:
        """Returns a box, even one that no longer exists. Raises `BoxNotFound`."""
        return self._loop.run(self._async.get(id))

    def open(self, id: str) -> SyncBox:
        """Returns a handle on an existing box. Raises `BoxNotFound` or `BoxGone`."""
        return SyncBox._wrap(self._loop.run(self._async.open(id)), self)

    def handle(self, record: BoxRecord, *, env: Mapping[str, str] | None = None) -> SyncBox:
        """Returns a handle for a record from the server, without a request. `env` is that of its spec, if known."""
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
        """Returns up to `limit` boxes (200 at most) and the cursor of the next page."""
        return self._loop.run(
            self._async.page(states=states, labels=labels, key=key, all=all, cursor=cursor, limit=limit)
        )

    def stop(self, id: str) -> BoxRecord:
        """End all processes in a box. Its files are kept."""
        return self._loop.run(self._async.stop(id))

    def start(self, id: str) -> BoxRecord:
        """Start a stopped box with its files."""
        return self._loop.run(self._async.start(id))

    def delete(self, id: str) -> Deleted:
        """Delete a box and everything it owns. Deleting a box twice is not an error."""
        return self._loop.run(self._async.delete(id))

    def set_network(self, id: str, policy: NetworkPolicy) -> BoxRecord:
        """Change what a box may reach, from now on."""
        return self._loop.run(self._async.set_network(id, policy))

    def fork(
        self, id: str, *, owner: Owner | None = None, key: str | None = None, idle_seconds: int | None = None
    ) -> BoxRecord:
        """Create a box with the same spec and files. A `key` must not have a box yet. With `idle_seconds` the fork is
        ephemeral, even if the original is not.
        """
        return self._loop.run(self._async.fork(id, owner=owner, key=key, idle_seconds=idle_seconds))

    def prune(self) -> Pruned:
        """Delete idle and stopped ephemeral boxes, and leftovers, now."""
        return self._loop.run(self._async.prune())

    def usage(self) -> BoxUsages:
        """Returns what all boxes use now."""
        return self._loop.run(self._async.usage())

    def diagnose(self, id: str | None = None, *, provider: str = "local") -> list[Step]:
        """Returns what works and what does not, for a provider or for one box."""
        return self._loop.run(self._async.diagnose(id, provider=provider))

    def snapshot(self, id: str, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Save the current files of a box."""
        return self._loop.run(self._async.snapshot(id, labels=labels))

    def snapshots(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        """Returns all snapshots, or those of a box or a key, oldest first."""
        return self._loop.run(self._async.snapshots(box=box, key=key))

    def delete_snapshot(self, id: str) -> int:
        """Delete a snapshot. Returns the bytes freed."""
        return self._loop.run(self._async.delete_snapshot(id))

    def restore(self, snapshot: str, spec: BoxSpec | None = None, *, owner: Owner | None = None) -> BoxRecord:
        """Create a box with a snapshot's files and the spec of its original box, or with another spec."""
        return self._loop.run(self._async.restore(snapshot, spec, owner=owner))

    def export_snapshot(self, id: str) -> SyncIterator[bytes]:
        """Yields the contents of a snapshot, for `import_snapshot`."""
        return SyncIterator._wrap(self._async.export_snapshot(id), self)

    def import_snapshot(self, stream: Iterable[bytes], *, provider: str = "local") -> Snapshot:
        """Import an exported snapshot, from this server or another."""
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
        """Yields matching boxes, newest first, at most `limit`. With `all`, includes boxes that no longer exist."""
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
        """Returns an image by name or digest."""
        return self._loop.run(self._async.get(name, provider=provider))

    def import_archive(self, name: str, archive: Iterable[bytes] | bytes, *, provider: str = "local") -> Image:
        """Import a root filesystem tarball, an OCI layout or the output of `docker save`, compressed or not.

        Raises `HostileArchive`, `BadArchive` or `NoSpace`. A failed import leaves nothing behind.
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
        """Pull an image from a registry by its Docker name. It is saved under that name or `save_as`.

        The server fetches it. `credentials` are a user name and a password for the registry; they are used for this
        pull only and not stored. `insecure` allows plain HTTP, which is always allowed on loopback. Raises
        `NotInRegistry`, `RegistryRefused`, `RegistryFailed`, `HostileArchive`, `BadArchive` or `NoSpace`.
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
        """Name a snapshot's files as an image. Without a config, uses that of the snapshot's image."""
        return self._loop.run(
            self._async.from_snapshot(snapshot, name, config=config, labels=labels, provider=provider)
        )

    def remove(self, name: str, *, provider: str = "local") -> int:
        """Remove a name. Returns the bytes freed."""
        return self._loop.run(self._async.remove(name, provider=provider))

    def list(self, *, provider: str = "local") -> list[Image]:
        """Returns all images, sorted by name."""
        return self._loop.run(self._async.list(provider=provider))


class SyncEgress(SyncHandle):
    """`Egress` for code without `await`."""

    _async: Egress

    def set(self, environment: str, policy: NetworkPolicy) -> EnvironmentPolicy:
        """Set the policy of an environment. It also applies to running boxes."""
        return self._loop.run(self._async.set(environment, policy))

    def get(self, environment: str) -> EnvironmentPolicy:
        """Raises `PolicyNotFound`."""
        return self._loop.run(self._async.get(environment))

    def remove(self, environment: str) -> None:
        """Raises `PolicyNotFound`."""
        self._loop.run(self._async.remove(environment))

    def policies(self) -> list[EnvironmentPolicy]:
        """Returns all policies, sorted by name."""
        return self._loop.run(self._async.policies())

    def default(self) -> DefaultList:
        """Returns what `default` stands for on the server's machine."""
        return self._loop.run(self._async.default())

    def page(
        self, box: str, *, denied_only: bool = False, cursor: str | None = None, limit: int = 50
    ) -> EgressDecisionPage:
        """Returns up to `limit` decisions about a box (200 at most) and the cursor of the next page."""
        return self._loop.run(self._async.page(box, denied_only=denied_only, cursor=cursor, limit=limit))

    def decisions(
        self, box: str, *, denied_only: bool = False, limit: int | None = None
    ) -> SyncIterator[EgressDecision]:
        """Yields the decisions about a box's requests, newest first: all that are kept, or at most `limit`."""
        return SyncIterator._wrap(self._async.decisions(box, denied_only=denied_only, limit=limit), self)


class SyncModelStore(SyncHandle):
    """`ModelStore` for code without `await`."""

    _async: ModelStore

    def list(self) -> list[ModelRecord]:
        """Returns all models, usable ones first."""
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
        """Add a model, or change one: omitted fields stay as they are. A built-in provider needs only a key."""
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
        """Remove a model and its key."""
        self._loop.run(self._async.remove(name))

    def test(self, name: str, *, model: str | None = None, api: Api | None = None) -> ModelTrial:
        """Send one small prompt from the server, in the same way as agents do."""
        return self._loop.run(self._async.test(name, model=model, api=api))

    def complete(
        self, messages: Sequence[Mapping[str, str]], *, model: str | None = None, timeout: float = 60.0
    ) -> ModelAnswer:
        """Ask a model from the server. Each message has `role` and `content`. `model` is `NAME` or `NAME/MODEL`; it may
        be omitted if there is only one.
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
        """Upload a folder for workspaces to start with. Returns its digest. `leave_out` is called for each path."""
        return self._loop.run(self._async.upload(folder, leave_out=leave_out))

    def upload_tar(self, archive: Iterable[bytes]) -> str:
        """Like `upload`, for files that are already a tar archive."""
        return self._loop.run(self._async.upload_tar(feed(archive)))

    def check(
        self, *, agent: str, model: str | None = None, thread: str | None = None, box: Mapping[str, Any] | None = None
    ) -> str:
        """Returns the model (`NAME/MODEL`) that a run would use. Raises what `launch` would raise. Starts nothing."""
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
        """Start a run on an existing thread or a new one. Returns once its prompt is on the server's disk.

        `workspace` is a digest that `upload` returned. `box` configures the box with the fields of the API: provider,
        image, cpu, memory, disk, pids, network, workdir, idleSeconds. The run is ended after `timeout` seconds, even if
        no client is connected any more.
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
        """Continue a thread: as before, or with another agent, in a new box, or with another network or limits.

        `memory` and `disk` are in bytes. `timeout` is in seconds; 0 means no limit.
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
        """Send a prompt to a run in progress. It waits for the run to end, or interrupts it. Returns in `how` what
        happened.
        """
        return self._loop.run(self._async.steer(id, prompt, interrupt=interrupt, author_id=author_id))

    def cancel(self, id: str, *, by: str | None = None) -> RunInfo:
        """End a run. A run that has already ended stays as it is."""
        return self._loop.run(self._async.cancel(id, by=by))

    def get(self, id: str) -> RunInfo:
        return self._loop.run(self._async.get(id))

    def wait(self, id: str) -> RunInfo:
        """Wait until a run has ended, and return it. To watch it work, follow its thread."""
        return self._loop.run(self._async.wait(id))

    def diagnose(self, id: str) -> Diagnosis:
        """Returns how far a run got, what is wrong with it, and what to do."""
        return self._loop.run(self._async.diagnose(id))

    def changes(self, id: str) -> Changes:
        """Compare the workspace of a thread with its initial state."""
        return self._loop.run(self._async.changes(id))

    def patch(self, id: str) -> SyncIterator[bytes]:
        """Yields a patch for `git apply` that turns the initial workspace into the current one."""
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
        """Returns up to `limit` runs (200 at most) and the cursor of the next page."""
        return self._loop.run(self._async.page(thread=thread, status=status, agent=agent, cursor=cursor, limit=limit))

    def list(
        self,
        *,
        thread: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
    ) -> SyncIterator[RunInfo]:
        """Yields matching runs, newest first, at most `limit`."""
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
        """Create an interpreter with a box and a Python in it. `box` has the same fields as for runs: provider, image,
        cpu, memory, network and so on. With `restore="fork"`, killing code does not lose state.
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
        """Returns an interpreter with the counts from its thread: executions, calls and tokens."""
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
        """Run code until it ends. `on_output` receives its output as it is printed.

        Lost connections are reopened, and the code still runs only once.
        """
        return self._loop.run(
            self._async.execute(
                id, code, variables=variables, timeout=timeout, on_output=on_output, execution_id=execution_id
            )
        )

    def interrupt(self, id: str) -> None:
        """Raise KeyboardInterrupt in the running code, if any."""
        self._loop.run(self._async.interrupt(id))

    def reset(self, id: str) -> None:
        """Start a new Python in the same box, with empty memory. Ends running code."""
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
        """Change the workspace in place. Returns what happened to the box, and why."""
        return self._loop.run(
            self._async.configure_workspace(id, repo_url=repo_url, ref=ref, volume=volume, force_new=force_new)
        )

    def export_state(self, id: str) -> SyncIterator[bytes]:
        """Yields the saved memory, for `import_state` of this interpreter or another."""
        return SyncIterator._wrap(self._async.export_state(id), self)

    def import_state(self, id: str, state: Iterable[bytes] | bytes) -> LoadedState:
        """Replace the whole memory. Returns the names that were loaded and those that could not be."""
        return self._loop.run(self._async.import_state(id, feed(state)))

    def delete(self, id: str) -> None:
        """Delete its box and memory. Its thread is kept."""
        self._loop.run(self._async.delete(id))

    def page(self, *, deleted: bool = False, cursor: str | None = None, limit: int = 50) -> InterpreterPage:
        """Returns up to `limit` interpreters (200 at most) and the cursor of the next page."""
        return self._loop.run(self._async.page(deleted=deleted, cursor=cursor, limit=limit))

    def test_box(
        self, *, box: Mapping[str, Any] | None = None, repo_url: str | None = None, ref: str | None = None
    ) -> RuntimeReport:
        """Test whether interpreters work here. Returns each phase with its time and problems."""
        return self._loop.run(self._async.test_box(box=box, repo_url=repo_url, ref=ref))

    def test_model(self, *, model: str | None = None) -> RuntimeReport:
        """Test whether a model answers."""
        return self._loop.run(self._async.test_model(model=model))

    def list(self, *, deleted: bool = False, limit: int | None = None) -> SyncIterator[InterpreterInfo]:
        """Yields all interpreters, including those of scripts and notebooks, latest activity first, at most `limit`."""
        return SyncIterator._wrap(self._async.list(deleted=deleted, limit=limit), self)
