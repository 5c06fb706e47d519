"""The client for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.client.box.sync import SyncBoxes
from holdfast.client.client import Client
from holdfast.client.connection import DEFAULT_RETRY_SECONDS, DEFAULT_TIMEOUT
from holdfast.client.run.sync import SyncAgentStore, SyncForks, SyncRuns, SyncTasks
from holdfast.client.session.sync import SyncInbox, SyncSessionGateways, SyncSessions, SyncWorkflows
from holdfast.client.thread.sync import SyncThread, SyncThreads
from holdfast.sync_twin import SyncHandle, SyncIterator, SyncOwner, feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Literal

    from holdfast.api.access.keys import Caller, CreatedKey, Key, Token
    from holdfast.api.access.login import LoginLink, LoginRecord
    from holdfast.api.access.shares import CreatedShare, ShareRecord
    from holdfast.api.access.tenants import CreatedTenant, TenantMember, TenantQuotas, TenantRecord, TenantRole
    from holdfast.api.box.network import NetworkPolicy
    from holdfast.api.box.records import Preview
    from holdfast.api.egress import DefaultList, EgressDecision, EgressDecisionPage, EnvironmentPolicy
    from holdfast.api.environments import EnvironmentBuild, EnvironmentCheck, EnvironmentConsent, EnvironmentRecord
    from holdfast.api.images import Image, ImageConfig
    from holdfast.api.interpreters import (
        InterpreterDetail,
        InterpreterInfo,
        InterpreterPage,
        LoadedState,
        RemoteExecution,
        SavedSession,
        WorkspaceTransition,
    )
    from holdfast.api.model.budgets import Budget, BudgetRecord, BudgetScope, CostReport
    from holdfast.api.model.models import Api, ModelAnswer, ModelPrice, ModelRecord, ModelTrial, Price
    from holdfast.api.progress import Progress
    from holdfast.api.providers import ProviderRecord, ProviderTrial, SettingValue
    from holdfast.api.run.repositories import ClonedRepository
    from holdfast.api.runtime_tests import RuntimeReport
    from holdfast.api.secrets import Binding, Exposure, SecretEvent, SecretRecord
    from holdfast.api.thread.threads import EntryPage
    from holdfast.api.webhooks import Webhook, WebhookDelivery, WebhookEvent, WebhookSecret
    from holdfast.client.access.keys import Keys
    from holdfast.client.access.logins import Logins
    from holdfast.client.access.tenants import Members, Tenants
    from holdfast.client.connection import FindAgain, RetryNotice
    from holdfast.client.egress import Egress
    from holdfast.client.environments import EnvironmentStore
    from holdfast.client.images import Images
    from holdfast.client.interpreters import Interpreters, OnOutput
    from holdfast.client.model.costs import Costs
    from holdfast.client.model.models import ModelStore
    from holdfast.client.providers import OnStep, ProviderStore
    from holdfast.client.resource import Resource
    from holdfast.client.secrets import SecretStore
    from holdfast.client.thread.shares import Shares
    from holdfast.client.transport import Transport
    from holdfast.client.webhooks import Webhooks


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
    def tenants(self) -> SyncTenants:
        return SyncTenants._wrap(self._async.tenants, self)

    @property
    def logins(self) -> SyncLogins:
        return SyncLogins._wrap(self._async.logins, self)

    @property
    def shares(self) -> SyncShares:
        return SyncShares._wrap(self._async.shares, self)

    @property
    def members(self) -> SyncMembers:
        return SyncMembers._wrap(self._async.members, self)

    @property
    def boxes(self) -> SyncBoxes:
        return SyncBoxes._wrap(self._async.boxes, self)

    @property
    def egress(self) -> SyncEgress:
        return SyncEgress._wrap(self._async.egress, self)

    @property
    def forks(self) -> SyncForks:
        return SyncForks._wrap(self._async.forks, self)

    @property
    def environments(self) -> SyncEnvironmentStore:
        return SyncEnvironmentStore._wrap(self._async.environments, self)

    @property
    def images(self) -> SyncImages:
        return SyncImages._wrap(self._async.images, self)

    @property
    def models(self) -> SyncModelStore:
        return SyncModelStore._wrap(self._async.models, self)

    @property
    def costs(self) -> SyncCosts:
        return SyncCosts._wrap(self._async.costs, self)

    @property
    def providers(self) -> SyncProviderStore:
        return SyncProviderStore._wrap(self._async.providers, self)

    @property
    def workflows(self) -> SyncWorkflows:
        return SyncWorkflows._wrap(self._async.workflows, self)

    @property
    def inbox(self) -> SyncInbox:
        return SyncInbox._wrap(self._async.inbox, self)

    @property
    def gateway(self) -> SyncSessionGateways:
        return SyncSessionGateways._wrap(self._async.gateway, self)

    @property
    def secrets(self) -> SyncSecretStore:
        return SyncSecretStore._wrap(self._async.secrets, self)

    @property
    def webhooks(self) -> SyncWebhooks:
        return SyncWebhooks._wrap(self._async.webhooks, self)

    @property
    def runs(self) -> SyncRuns:
        return SyncRuns._wrap(self._async.runs, self)

    @property
    def sessions(self) -> SyncSessions:
        return SyncSessions._wrap(self._async.sessions, self)

    @property
    def tasks(self) -> SyncTasks:
        return SyncTasks._wrap(self._async.tasks, self)

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

    def box_resource(self, name: str) -> Resource:
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


class SyncKeys(SyncHandle):
    """`Keys` for code without `await`."""

    _async: Keys

    def create(
        self, name: str, *, role: Literal["owner", "member", "viewer"] = "owner", member: str | None = None
    ) -> CreatedKey:
        """Create a key. Its `secret` is returned only once, because the server stores only a digest.

        `role` is what it may do at most. The key of a `member` never does more than their role allows.
        """
        return self._loop.run(self._async.create(name, role=role, member=member))

    def caller(self) -> Caller:
        """Returns who this client is to the server: its tenant, and the name of its key."""
        return self._loop.run(self._async.caller())

    def list(self) -> list[Key]:
        return self._loop.run(self._async.list())

    def revoke(self, id: str) -> None:
        """Revoke a key on all servers that share the storage."""
        self._loop.run(self._async.revoke(id))


class SyncLogins(SyncHandle):
    """`Logins` for code without `await`."""

    _async: Logins

    def create_link(self) -> LoginLink:
        """Create a link that logs one browser in as the caller, once, within ten minutes."""
        return self._loop.run(self._async.create_link())

    def list(self) -> list[LoginRecord]:
        """Returns the browsers that are logged in. Needs an owner's key, as `end` does."""
        return self._loop.run(self._async.list())

    def end(self, id: str) -> None:
        """Log a browser out."""
        self._loop.run(self._async.end(id))


class SyncShares(SyncHandle):
    """`Shares` for code without `await`."""

    _async: Shares

    def create(self, thread: str, *, seconds: int = 7 * 24 * 3600) -> CreatedShare:
        """Share a thread. The link is returned only once."""
        return self._loop.run(self._async.create(thread, seconds=seconds))

    def list(self, thread: str) -> list[ShareRecord]:
        return self._loop.run(self._async.list(thread))

    def revoke(self, thread: str, id: str) -> None:
        """Revoke a share. Its link stops working at once."""
        self._loop.run(self._async.revoke(thread, id))


class SyncTenants(SyncHandle):
    """`Tenants` for code without `await`."""

    _async: Tenants

    def create(self, name: str) -> CreatedTenant:
        """Create a tenant. The key of its first owner is returned only once."""
        return self._loop.run(self._async.create(name))

    def create_key(self, tenant: str, name: str) -> CreatedKey:
        """Create an API key of a tenant, for an owner who has lost theirs."""
        return self._loop.run(self._async.create_key(tenant, name))

    def quotas(self, name: str) -> TenantQuotas:
        """Returns what a tenant may use at most."""
        return self._loop.run(self._async.quotas(name))

    def limit(self, name: str, quotas: TenantQuotas) -> TenantQuotas:
        """Set what a tenant may use at most, from now on."""
        return self._loop.run(self._async.limit(name, quotas))

    def list(self) -> list[TenantRecord]:
        """Returns all tenants beside the default one."""
        return self._loop.run(self._async.list())

    def remove(self, name: str) -> None:
        """Remove a tenant with its threads, keys and settings. Refused while it has boxes."""
        self._loop.run(self._async.remove(name))


class SyncMembers(SyncHandle):
    """`Members` for code without `await`."""

    _async: Members

    def put(self, name: str, role: TenantRole) -> TenantMember:
        """Add a member, or change the role of one."""
        return self._loop.run(self._async.put(name, role))

    def audit(self, since: str = "-1", limit: int = 100) -> EntryPage:
        """Returns who changed what in the tenant, oldest first, from an offset of an earlier page."""
        return self._loop.run(self._async.audit(since, limit))

    def list(self) -> list[TenantMember]:
        return self._loop.run(self._async.list())

    def remove(self, name: str) -> None:
        """Remove a member, and revoke all their keys."""
        self._loop.run(self._async.remove(name))


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


class SyncEnvironmentStore(SyncHandle):
    """`EnvironmentStore` for code without `await`."""

    _async: EnvironmentStore

    def get(self, name: str, *, version: int | None = None) -> EnvironmentRecord:
        """Returns a version, by default the latest."""
        return self._loop.run(self._async.get(name, version=version))

    def versions(self, name: str) -> list[EnvironmentRecord]:
        """Returns all versions, newest first."""
        return self._loop.run(self._async.versions(name))

    def save(self, name: str, text: str, *, after: int | None = None) -> EnvironmentRecord:
        """Store a new version, unless the latest one has the same text. With `after`, only if that is the latest
        version; 0 means that there must be none. Raises `InvalidEnvironment` or `EnvironmentChanged`.
        """
        return self._loop.run(self._async.save(name, text, after=after))

    def remove(self, name: str) -> None:
        """Remove all versions, and the setups."""
        self._loop.run(self._async.remove(name))

    def check(
        self,
        environment: str | None = None,
        *,
        text: str | None = None,
        place: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        fallbacks: Sequence[str] = (),
        provider: str | None = None,
        given: Sequence[str] = (),
    ) -> EnvironmentCheck:
        """Returns everything that the server lacks for an environment (`NAME` or `NAME@VERSION`), or for the text of a
        file. `agent`, `model` and `provider` are what a run would give by itself, and `given` names what else: `image`,
        `network`, `cpu`, `memory`, `disk`, `pids`.
        """
        return self._loop.run(
            self._async.check(
                environment,
                text=text,
                place=place,
                agent=agent,
                model=model,
                fallbacks=fallbacks,
                provider=provider,
                given=given,
            )
        )

    def build(
        self,
        environment: str | None = None,
        *,
        text: str | None = None,
        place: str | None = None,
        workspace: str | None = None,
        repositories: Sequence[ClonedRepository] = (),
        again: bool = False,
        progress: Progress | None = None,
    ) -> EnvironmentBuild:
        """Run the setup of an environment ahead of runs. `workspace` is a digest from `runs.upload`, for a setup with
        inputs or repositories, and `repositories` are those that it has. With `again`, the commands are run even if
        they were run before. Raises `SetupFailed`.
        """
        return self._loop.run(
            self._async.build(
                environment,
                text=text,
                place=place,
                workspace=workspace,
                repositories=repositories,
                again=again,
                progress=progress,
            )
        )

    def consent(self, text: str, *, place: str) -> EnvironmentConsent:
        """Returns what a file from a repository asks for, and whether it was allowed at this place: the absolute path
        of its folder, or the address of the repository.
        """
        return self._loop.run(self._async.consent(text, place=place))

    def allow(self, text: str, *, place: str) -> EnvironmentConsent:
        """Allow a file from a repository what it asks for. This is for exactly this text at this place, and replaces
        what was allowed there before.
        """
        return self._loop.run(self._async.allow(text, place=place))

    def disallow(self, place: str) -> bool:
        """Take back what the file at a place was allowed. Returns whether anything was."""
        return self._loop.run(self._async.disallow(place))

    def list(self) -> list[EnvironmentRecord]:
        """Returns the latest version of each environment, by name."""
        return self._loop.run(self._async.list())


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

    def prices(self) -> Sequence[ModelPrice]:
        """Returns all known prices, sorted by model."""
        return self._loop.run(self._async.prices())

    def set_price(self, model: str, price: Price) -> ModelPrice:
        """Set the price of a model (`NAME/MODEL`), in dollars for a million tokens."""
        return self._loop.run(self._async.set_price(model, price))

    def remove_price(self, model: str) -> None:
        """Remove a price that was set here."""
        self._loop.run(self._async.remove_price(model))

    def complete(
        self, messages: Sequence[Mapping[str, str]], *, model: str | None = None, timeout: float = 60.0
    ) -> ModelAnswer:
        """Ask a model from the server. Each message has `role` and `content`. `model` is `NAME` or `NAME/MODEL`; it may
        be omitted if there is only one.
        """
        return self._loop.run(self._async.complete(messages, model=model, timeout=timeout))


class SyncCosts(SyncHandle):
    """`Costs` for code without `await`."""

    _async: Costs

    def report(
        self,
        *,
        thread: str | None = None,
        tree: str | None = None,
        run: str | None = None,
        since: int | None = None,
        by: Literal["model", "run", "thread", "day"] = "model",
    ) -> CostReport:
        """Sum up the calls of models: all of them, or those of a thread, of a thread and the threads below it, or of a
        run. `since` is a time in UTC milliseconds.
        """
        return self._loop.run(self._async.report(thread=thread, tree=tree, run=run, since=since, by=by))

    def budgets(self) -> list[BudgetRecord]:
        """Returns the budgets of threads, trees and days."""
        return self._loop.run(self._async.budgets())

    def set_budget(self, scope: BudgetScope, subject: str, budget: Budget) -> BudgetRecord:
        """Set a budget. `subject` is the thread, and empty for the budget of each day."""
        return self._loop.run(self._async.set_budget(scope, subject, budget))

    def remove_budget(self, scope: BudgetScope, subject: str = "") -> None:
        self._loop.run(self._async.remove_budget(scope, subject))


class SyncProviderStore(SyncHandle):
    """`ProviderStore` for code without `await`."""

    _async: ProviderStore

    def get(self, name: str) -> ProviderRecord:
        return self._loop.run(self._async.get(name))

    def add(
        self,
        name: str,
        *,
        kind: str | None = None,
        settings: Mapping[str, SettingValue | None] | None = None,
        credential: Mapping[str, str] | None = None,
    ) -> ProviderRecord:
        """Add an account, or change one: what is omitted stays as it is. `kind` defaults to the name.

        `credential` has the settings that the provider declares as secret: `{"sprites_token": …}`. It is stored
        encrypted, and never returned. Other `settings` than before need it again.
        """
        return self._loop.run(self._async.add(name, kind=kind, settings=settings, credential=credential))

    def remove(self, name: str) -> None:
        """Remove an account and its credential. Raises `AccountInUse` while it has boxes."""
        self._loop.run(self._async.remove(name))

    def test(self, name: str, *, on_step: OnStep | None = None) -> ProviderTrial:
        """Reach a provider, create a box, run a command in it and delete it. `on_step` gets each step when it is done.

        If this is cancelled, the server deletes what was created.
        """
        return self._loop.run(self._async.test(name, on_step=on_step))

    def set_up(
        self,
        name: str,
        machine: str,
        *,
        agents: Sequence[str] = ("pi",),
        environment: Mapping[str, str] | None = None,
        on_step: OnStep | None = None,
    ) -> ProviderTrial:
        """Put agents and variables into a machine of yours at a provider, or into that of a box.

        What you have there is not replaced, and doing it twice changes nothing. `on_step` gets each step when it is
        done.
        """
        return self._loop.run(
            self._async.set_up(name, machine, agents=agents, environment=environment, on_step=on_step)
        )

    def list(self) -> list[ProviderRecord]:
        """Returns all providers, usable ones first."""
        return self._loop.run(self._async.list())


class SyncSecretStore(SyncHandle):
    """`SecretStore` for code without `await`."""

    _async: SecretStore

    def list(self) -> list[SecretRecord]:
        """Returns all secrets by name, without their values."""
        return self._loop.run(self._async.list())

    def get(self, name: str) -> SecretRecord:
        return self._loop.run(self._async.get(name))

    def set(
        self,
        name: str,
        value: str,
        bindings: Sequence[Binding] = (),
        *,
        expose: Exposure | None = None,
        placeholder: str | None = None,
    ) -> SecretRecord:
        """Store a secret, in place of the one of that name. It needs a binding, or an exposure."""
        return self._loop.run(self._async.set(name, value, bindings, expose=expose, placeholder=placeholder))

    def rotate(self, name: str, value: str) -> SecretRecord:
        """Give a secret a new value. Its bindings stay."""
        return self._loop.run(self._async.rotate(name, value))

    def remove(self, name: str) -> None:
        """Remove a secret. Boxes can no longer use it."""
        self._loop.run(self._async.remove(name))

    def events(self, name: str, *, limit: int = 100) -> tuple[SecretEvent, ...]:
        """Returns who changed a secret and which boxes used it where, newest first."""
        return self._loop.run(self._async.events(name, limit=limit))


class SyncWebhooks(SyncHandle):
    """`Webhooks` for code without `await`."""

    _async: Webhooks

    def add(self, url: str, events: Sequence[WebhookEvent] = (), threads: Sequence[str] = ()) -> WebhookSecret:
        """Add a webhook for these events on these threads, or for all. The secret is returned only once."""
        return self._loop.run(self._async.add(url, events, threads))

    def list(self) -> list[Webhook]:
        """Returns all webhooks, each with its latest deliveries."""
        return self._loop.run(self._async.list())

    def get(self, id: str) -> Webhook:
        return self._loop.run(self._async.get(id))

    def test(self, id: str) -> WebhookDelivery:
        """Send a test event once. Returns what came of it."""
        return self._loop.run(self._async.test(id))

    def rotate(self, id: str) -> WebhookSecret:
        """Give a webhook a new secret. For a day, requests are signed with both."""
        return self._loop.run(self._async.rotate(id))

    def remove(self, id: str) -> None:
        self._loop.run(self._async.remove(id))


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
        workspace: str | None = None,
        output_fields: Sequence[Mapping[str, str]] | None = None,
        timeout: float | None = None,
        restore: Literal["fork"] | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> InterpreterDetail:
        """Create an interpreter with a box and a Python in it. `box` has the same fields as for runs: provider, image,
        cpu, memory, network and so on. With `restore="fork"`, killing code does not lose state. `workspace`
        mounts the volume of that workspace of your tenant; the server knows tenant and user from your key.
        """
        return self._loop.run(
            self._async.create(
                template=template,
                model=model,
                box=box,
                repo_url=repo_url,
                ref=ref,
                volume=volume,
                workspace=workspace,
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

    def preview(self, id: str, port: int) -> Preview:
        """Returns the URL at which a browser reaches a port that code in the box listens on."""
        return self._loop.run(self._async.preview(id, port))

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

    def save_session(self, id: str, session: str) -> SavedSession:
        """Save the memory on the volume, for this or another interpreter of the same user and workspace."""
        return self._loop.run(self._async.save_session(id, session))

    def load_session(self, id: str, session: str) -> LoadedState:
        """Replace the whole memory by that of a session."""
        return self._loop.run(self._async.load_session(id, session))

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
