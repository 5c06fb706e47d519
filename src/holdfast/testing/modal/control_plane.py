"""The control plane of the counterpart of Modal: apps, images, volumes, and the lifecycle of sandboxes.

Handlers are named by the methods of the wire. Methods of the first generation of sandboxes answer like those of the
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import jwt
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from holdfast.api.errors.boxes import BoxError
from holdfast.testing.modal.sandboxes import Result, Sandbox, random_id
from holdfast.testing.modal.state import CloudState, Image, Volume

_BUILDER: Final = "2025.06"
_TOKEN_SECONDS: Final = 3600
_PAGE: Final = 25
_FROM: Final = re.compile(r"FROM\s+(\S+)", re.IGNORECASE)
_SUCCESS: Final = Result(status=Result.GENERIC_STATUS_SUCCESS)
_TERMINATED: Final = Result(status=Result.GENERIC_STATUS_TERMINATED, exitcode=137)


def make_token(secret: str, subject: str) -> str:
    return jwt.encode({"sub": subject, "exp": int(time.time()) + _TOKEN_SECONDS}, secret, algorithm="HS256")


class ControlPlane:
    def __init__(self, state: CloudState) -> None:
        self._state = state

    def handlers(self) -> dict[str, Callable[[Any], Any]]:
        made: dict[str, Callable[[Any], Any]] = {
            "ClientHello": self.hello,
            "AuthTokenGet": self.get_token,
            "AppGetOrCreate": self.get_app,
            "EnvironmentGetOrCreate": self.get_environment,
            "ImageGetOrCreate": self.get_image,
            "ImageJoinStreaming": self.join_image,
            "ImageFromId": self.image_from_id,
            "ImageDelete": self.delete_image,
            "SandboxCreate": lambda request: self.create(request, True),
            "SandboxCreateV2": lambda request: self.create(request, False),
            "SecretGetOrCreate": self.get_secret,
            "TaskGetCommandRouterAccess": self.router_access,
            "SandboxGetCommandRouterAccess": self.router_access,
            "VolumeGetOrCreate": self.get_volume,
            "VolumeGetById": self.volume_by_id,
            "VolumeList": self.list_volumes,
            "VolumeDelete": self.delete_volume,
            "VolumeListFiles": self.list_files,
        }
        both = {
            "SandboxGetFromName": self.from_name,
            "SandboxGetTaskId": self.get_task_id,
            "SandboxGetTunnels": self.get_tunnels,
            "SandboxList": self.list_sandboxes,
            "SandboxTagsGet": self.get_tags,
            "SandboxTagsSet": self.set_tags,
            "SandboxTerminate": self.terminate,
            "SandboxWait": self.wait,
        }
        for name, handler in both.items():
            made[name] = made[f"{name}V2"] = handler
        return made

    # --- the account ---

    async def hello(self, request: empty_pb2.Empty) -> api_pb2.ClientHelloResponse:
        return api_pb2.ClientHelloResponse(image_builder_version=_BUILDER)

    async def get_token(self, request: object) -> api_pb2.AuthTokenGetResponse:
        return api_pb2.AuthTokenGetResponse(token=make_token(self._state.secret, "client"))

    async def get_app(self, request: api_pb2.AppGetOrCreateRequest) -> api_pb2.AppGetOrCreateResponse:
        found = self._state.apps.get(request.app_name)
        if found is None:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found")
            found = self._state.apps[request.app_name] = random_id("ap")
        return api_pb2.AppGetOrCreateResponse(app_id=found)

    async def get_environment(
        self, request: api_pb2.EnvironmentGetOrCreateRequest
    ) -> api_pb2.EnvironmentGetOrCreateResponse:
        settings = api_pb2.EnvironmentSettings(image_builder_version=_BUILDER, webhook_suffix="")
        metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-main", metadata=metadata)

    async def get_secret(self, request: api_pb2.SecretGetOrCreateRequest) -> api_pb2.SecretGetOrCreateResponse:
        id = random_id("st")
        self._state.secrets[id] = dict(request.env_dict)
        return api_pb2.SecretGetOrCreateResponse(secret_id=id)

    # --- images ---

    async def get_image(self, request: api_pb2.ImageGetOrCreateRequest) -> api_pb2.ImageGetOrCreateResponse:
        """An image of a registry becomes a plain local box. Other steps of its recipe are not carried out."""
        for base in request.image.base_images:
            return api_pb2.ImageGetOrCreateResponse(image_id=base.image_id, result=_SUCCESS)
        first = next(iter(request.image.dockerfile_commands), "")
        match = _FROM.match(first)
        name = match[1] if match else ""
        image = self._state.image_named(name)
        if image is None:
            failed = Result(status=Result.GENERIC_STATUS_FAILURE, exception=f"manifest for {name} not found")
            return api_pb2.ImageGetOrCreateResponse(image_id=random_id("im"), result=failed)
        return api_pb2.ImageGetOrCreateResponse(image_id=image.id, result=_SUCCESS)

    async def join_image(
        self, request: api_pb2.ImageJoinStreamingRequest
    ) -> AsyncIterator[api_pb2.ImageJoinStreamingResponse]:
        self._image(request.image_id)
        yield api_pb2.ImageJoinStreamingResponse(result=_SUCCESS, eof=True)

    async def image_from_id(self, request: api_pb2.ImageFromIdRequest) -> api_pb2.ImageFromIdResponse:
        return api_pb2.ImageFromIdResponse(image_id=self._image(request.image_id).id)

    async def delete_image(self, request: api_pb2.ImageDeleteRequest) -> empty_pb2.Empty:
        image = self._image(request.image_id)
        del self._state.images[image.id]
        if image.snapshot is not None:
            try:
                await self._state.local.delete_snapshot(image.snapshot)
            except BoxError as error:
                raise GRPCError(Status.FAILED_PRECONDITION, error.message) from None
        return empty_pb2.Empty()

    def _image(self, id: str) -> Image:
        found = self._state.images.get(id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Image {id} not found")
        return found

    # --- sandboxes ---

    async def create(self, request: Any, v1: bool) -> Any:
        definition: api_pb2.Sandbox = request.definition
        if definition.name and self._state.running(request.app_id, definition.name) is not None:
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox with name '{definition.name}' already exists")
        env: dict[str, str] = {}
        for id in definition.secret_ids:
            env.update(self._state.secrets.get(id, {}))
        for source in () if v1 else request.secret_sources:
            env.update(source.env.contents)
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        sandbox = Sandbox(definition, request.app_id, tags, v1=v1)
        self._state.sandboxes[sandbox.id] = sandbox
        try:
            await self._state.start(sandbox, self._image(definition.image_id), env)
        except BoxError as error:
            del self._state.sandboxes[sandbox.id]
            raise GRPCError(Status.FAILED_PRECONDITION, error.message) from None
        except BaseException:
            del self._state.sandboxes[sandbox.id]
            raise
        if v1:
            return api_pb2.SandboxCreateResponse(sandbox_id=sandbox.id, metadata=sandbox.metadata)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=sandbox.id,
            task_id=sandbox.task_id,
            metadata=sandbox.metadata,
            tunnels=sandbox.tunnel_data(),
            command_router_access=self._access(sandbox),
        )

    def _access(self, sandbox: Sandbox) -> api_pb2.CommandRouterAccess:
        token = make_token(self._state.secret, sandbox.task_id)
        return api_pb2.CommandRouterAccess(url=self._state.router_url, jwt=token)

    async def router_access(self, request: Any) -> Any:
        sandbox = self._state.by_task(request.task_id) if request.task_id else self._state.sandbox(request.sandbox_id)
        access = self._access(sandbox)
        if isinstance(request, api_pb2.TaskGetCommandRouterAccessRequest):
            return api_pb2.TaskGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def from_name(self, request: api_pb2.SandboxGetFromNameRequest) -> api_pb2.SandboxGetFromNameResponse:
        app = self._state.apps.get(request.app_name, "")
        found = self._state.running(app, request.sandbox_name)
        if found is None and request.include_terminated:
            wanted = app, request.sandbox_name
            ended = [each for each in self._state.sandboxes.values() if (each.app_id, each.name) == wanted]
            found = max(ended, key=lambda each: each.created_at, default=None)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox '{request.sandbox_name}' not found")
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=found.id, metadata=found.metadata)

    async def wait(self, request: api_pb2.SandboxWaitRequest) -> api_pb2.SandboxWaitResponse:
        sandbox = self._state.sandbox(request.sandbox_id)
        if request.timeout > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sandbox.finished.wait(), request.timeout)
        if sandbox.result is None:
            return api_pb2.SandboxWaitResponse(metadata=sandbox.metadata)
        return api_pb2.SandboxWaitResponse(result=sandbox.result, metadata=sandbox.metadata)

    async def list_sandboxes(self, request: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [
            each
            for each in self._state.listed()
            if (not request.app_id or each.app_id == request.app_id)
            and wanted.items() <= each.tags.items()
            and (not request.before_timestamp or each.created_at < request.before_timestamp)
        ]
        found.sort(key=lambda each: each.created_at, reverse=True)
        return api_pb2.SandboxListResponse(
            sandboxes=[
                api_pb2.SandboxInfo(
                    id=each.id,
                    created_at=each.created_at,
                    app_id=each.app_id,
                    name=each.name,
                    image_id=each.definition.image_id,
                    tags=_tags(each),
                    metadata=each.metadata,
                )
                for each in found[:_PAGE]
            ]
        )

    async def get_tags(self, request: Any) -> api_pb2.SandboxTagsGetResponse:
        return api_pb2.SandboxTagsGetResponse(tags=_tags(self._state.sandbox(request.sandbox_id)))

    async def set_tags(self, request: api_pb2.SandboxTagsSetRequest) -> empty_pb2.Empty:
        self._state.sandbox(request.sandbox_id).tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return empty_pb2.Empty()

    async def terminate(self, request: api_pb2.SandboxTerminateRequest) -> api_pb2.SandboxTerminateResponse:
        sandbox = self._state.sandbox(request.sandbox_id)
        before = sandbox.result
        await sandbox.finish(_TERMINATED)
        return api_pb2.SandboxTerminateResponse(existing_result=before)

    async def get_task_id(self, request: api_pb2.SandboxGetTaskIdRequest) -> api_pb2.SandboxGetTaskIdResponse:
        sandbox = self._state.sandbox(request.sandbox_id)
        if sandbox.result is not None:
            return api_pb2.SandboxGetTaskIdResponse(task_result=sandbox.result)
        return api_pb2.SandboxGetTaskIdResponse(task_id=sandbox.task_id)

    async def get_tunnels(self, request: api_pb2.SandboxGetTunnelsRequest) -> api_pb2.SandboxGetTunnelsResponse:
        return api_pb2.SandboxGetTunnelsResponse(tunnels=self._state.sandbox(request.sandbox_id).tunnel_data())

    # --- volumes ---

    async def get_volume(self, request: api_pb2.VolumeGetOrCreateRequest) -> api_pb2.VolumeGetOrCreateResponse:
        found = next((each for each in self._state.volumes.values() if each.name == request.deployment_name), None)
        kind = request.object_creation_type
        if found is not None and kind == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise GRPCError(Status.ALREADY_EXISTS, f"Volume '{request.deployment_name}' already exists")
        if found is None:
            if kind == api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED:
                raise GRPCError(Status.NOT_FOUND, f"Volume '{request.deployment_name}' not found")
            found = Volume(random_id("vo"), request.deployment_name, time.time())
            self._state.volumes[found.id] = found
            await self._state.local.create_volume(found.id)
        return api_pb2.VolumeGetOrCreateResponse(volume_id=found.id, metadata=found.metadata)

    def _volume(self, id: str) -> Volume:
        found = self._state.volumes.get(id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Volume {id} not found")
        return found

    async def volume_by_id(self, request: api_pb2.VolumeGetByIdRequest) -> api_pb2.VolumeGetByIdResponse:
        found = self._volume(request.volume_id)
        return api_pb2.VolumeGetByIdResponse(volume_id=found.id, metadata=found.metadata)

    async def list_volumes(self, request: api_pb2.VolumeListRequest) -> api_pb2.VolumeListResponse:
        before = request.pagination.created_before or float("inf")
        found = sorted(self._state.volumes.values(), key=lambda each: each.created_at, reverse=True)
        most = request.pagination.max_objects or len(found)
        return api_pb2.VolumeListResponse(
            items=[
                api_pb2.VolumeListItem(
                    label=each.name, volume_id=each.id, created_at=each.created_at, metadata=each.metadata
                )
                for each in [each for each in found if each.created_at < before][:most]
            ]
        )

    async def list_files(
        self, request: api_pb2.VolumeListFilesRequest
    ) -> AsyncIterator[api_pb2.VolumeListFilesResponse]:
        """Of a volume as a whole."""
        found = await asyncio.to_thread(self._state.files_of, self._volume(request.volume_id))
        yield api_pb2.VolumeListFilesResponse(
            entries=[
                api_pb2.FileEntry(path=path, type=api_pb2.FileEntry.FILE, size=size) for path, size in found.items()
            ]
        )

    async def delete_volume(self, request: api_pb2.VolumeDeleteRequest) -> empty_pb2.Empty:
        found = self._volume(request.volume_id)
        try:
            await self._state.local.delete_volume(found.id)
        except BoxError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, error.message) from None
        del self._state.volumes[found.id]
        return empty_pb2.Empty()


def _tags(sandbox: Sandbox) -> list[api_pb2.SandboxTag]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in sandbox.tags.items()]
