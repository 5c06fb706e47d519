"""The environments of a server: store, check and build them: `client.environments`. Needs an API key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.api.environments import (
    AllowEnvironment,
    BuildEnvironment,
    CheckEnvironment,
    DisallowEnvironment,
    EnvironmentBuild,
    EnvironmentCheck,
    EnvironmentConsent,
    EnvironmentDisallowed,
    EnvironmentList,
    EnvironmentRecord,
    SaveEnvironment,
)
from holdfast.api.errors import NotFound, Unreachable
from holdfast.api.run.repositories import ClonedRepository
from holdfast.client.connection import ServerConnection, encode_json
from holdfast.client.progress_lines import follow_progress
from holdfast.client.resource import LONG_SECONDS, Resource

if TYPE_CHECKING:
    from holdfast.api.progress import Progress


class EnvironmentStore:
    """All environments of one server. Raises `EnvironmentNotFound` for unknown names."""

    def __init__(self, connection: ServerConnection) -> None:
        self._environments = Resource(connection, "/v1/environments")

    async def get(self, name: str, *, version: int | None = None) -> EnvironmentRecord:
        """Returns a version, by default the latest."""
        parameters = [] if version is None else [("version", str(version))]
        answer = await self._environments.ask("GET", f"/{quote(name, safe='')}", parameters=parameters)
        return answer.read(EnvironmentRecord.from_json)

    async def versions(self, name: str) -> list[EnvironmentRecord]:
        """Returns all versions, newest first."""
        answer = await self._environments.ask("GET", f"/{quote(name, safe='')}/versions")
        return list(answer.read(EnvironmentList.from_json).environments)

    async def save(self, name: str, text: str, *, after: int | None = None) -> EnvironmentRecord:
        """Store a new version, unless the latest one has the same text. With `after`, only if that is the latest
        version; 0 means that there must be none. Raises `InvalidEnvironment` or `EnvironmentChanged`.
        """
        wanted = SaveEnvironment(text=text, after=after)
        answer = await self._environments.ask("PUT", f"/{quote(name, safe='')}", wanted.to_request())
        return answer.read(EnvironmentRecord.from_json)

    async def remove(self, name: str) -> None:
        """Remove all versions, and the setups."""
        try:
            await self._environments.ask("DELETE", f"/{quote(name, safe='')}", timeout=LONG_SECONDS)
        except NotFound as error:
            if not error.repeated:
                raise

    async def check(
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
        wanted = CheckEnvironment(
            environment=environment,
            text=text,
            place=place,
            agent=agent,
            model=model,
            fallbacks=tuple(fallbacks),
            provider=provider,
            given=tuple(given),
        )
        return (await self._environments.ask("POST", "/check", wanted.to_request())).read(EnvironmentCheck.from_json)

    async def build(
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
        wanted = BuildEnvironment(
            environment=environment,
            text=text,
            place=place,
            workspace=workspace,
            repositories=tuple(repositories),
            again=again,
        )
        body = encode_json(wanted.to_request())
        async with self._environments.exchange(
            "POST", "/build", body=body, media_type="application/json", silence=LONG_SECONDS
        ) as response:
            if (last := await follow_progress(response, progress)) is not None:
                return EnvironmentBuild.from_json(last["build"])
        raise Unreachable(
            f"{self._environments.url} closed the connection before the setup was built", hint="build it again"
        )

    async def consent(self, text: str, *, place: str) -> EnvironmentConsent:
        """Returns what a file from a repository asks for, and whether it was allowed at this place: the absolute path
        of its folder, or the address of the repository.
        """
        wanted = AllowEnvironment(text=text, place=place)
        return (await self._environments.ask("POST", "/consent", wanted.to_request())).read(
            EnvironmentConsent.from_json
        )

    async def allow(self, text: str, *, place: str) -> EnvironmentConsent:
        """Allow a file from a repository what it asks for. This is for exactly this text at this place, and replaces
        what was allowed there before.
        """
        wanted = AllowEnvironment(text=text, place=place)
        return (await self._environments.ask("POST", "/allow", wanted.to_request())).read(EnvironmentConsent.from_json)

    async def disallow(self, place: str) -> bool:
        """Take back what the file at a place was allowed. Returns whether anything was."""
        answer = await self._environments.ask("POST", "/disallow", DisallowEnvironment(place=place).to_request())
        return answer.read(EnvironmentDisallowed.from_json).removed

    # Last, so that `list` means the builtin everywhere above.
    async def list(self) -> list[EnvironmentRecord]:
        """Returns the latest version of each environment, by name."""
        return list((await self._environments.ask("GET")).read(EnvironmentList.from_json).environments)
