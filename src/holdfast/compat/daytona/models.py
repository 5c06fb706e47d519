"""Bodies of requests to the control plane, with their limits. Other fields of Daytona's are ignored."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f]+$")]
SandboxName = Annotated[
    str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/]*[^\x00-\x1f/.][^\x00-\x1f/]*$")
]
"""Part of the addresses of requests, where a slash or dots alone mean something else."""
Label = Annotated[str, Field(max_length=512)]
Labels = Annotated[dict[Annotated[str, Field(min_length=1, max_length=128)], Label], Field(max_length=64)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=512)]
Variables = Annotated[dict[Variable, Annotated[str, Field(max_length=131_000)]], Field(max_length=1024)]
Minutes = Annotated[int, Field(ge=0, le=10_000_000)]
Cores = Annotated[int, Field(gt=0, le=1024)]
Gigabytes = Annotated[int, Field(gt=0, le=1 << 20)]
Mounts = Annotated[
    list[Annotated[dict[Variable, Annotated[str, Field(max_length=255)]], Field(max_length=100)]],
    Field(max_length=100),
]
"""Variables and names of secrets, as the SDKs send them: one object for each, or one for all."""
Dockerfile = Annotated[str, Field(min_length=1, max_length=262_144)]


class Body(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class MountedVolume(Body):
    volume_id: Name
    mount_path: Annotated[str, Field(min_length=1, max_length=4095)]
    subpath: Annotated[str, Field(max_length=1023)] | None = None


class BuildInfo(Body):
    dockerfile_content: Dockerfile
    context_hashes: Annotated[list[str], Field(max_length=100)] | None = None


class Resources(Body):
    cpu: Cores | None = None
    memory: Gigabytes | None = None
    disk: Gigabytes | None = None


class NewSandbox(Resources):
    name: SandboxName | None = None
    snapshot: Name | None = None
    user: Annotated[str, Field(max_length=128)] | None = None
    env: Variables | None = None
    labels: Labels | None = None
    public: bool | None = None
    network_block_all: bool | None = None
    network_allow_list: Annotated[str, Field(max_length=4096)] | None = None
    domain_allow_list: Annotated[str, Field(max_length=16_384)] | None = None
    target: Annotated[str, Field(max_length=128)] | None = None
    gpu: int | None = None
    auto_stop_interval: Minutes | None = None
    auto_pause_interval: Minutes | None = None
    auto_archive_interval: Minutes | None = None
    auto_delete_interval: Annotated[int, Field(ge=-1, le=10_000_000)] | None = None
    ttl_minutes: Minutes | None = None
    volumes: Annotated[list[MountedVolume], Field(max_length=64)] | None = None
    build_info: BuildInfo | None = None
    outbound_proxy_url: str | None = None
    linked_sandbox: str | None = None
    secrets: Mounts | None = None


class NewLabels(Body):
    labels: Labels


class NewNetwork(Body):
    network_block_all: bool | None = None
    network_allow_list: Annotated[str, Field(max_length=4096)] | None = None
    domain_allow_list: Annotated[str, Field(max_length=16_384)] | None = None


class NewFork(Body):
    name: SandboxName | None = None


class NewSandboxSnapshot(Body):
    name: Name


class NewSnapshot(Resources):
    name: Name
    image_name: Annotated[str, Field(min_length=1, max_length=511)] | None = None
    entrypoint: Annotated[list[str], Field(max_length=1000)] | None = None
    gpu: int | None = None
    build_info: BuildInfo | None = None
    region_id: Annotated[str, Field(max_length=128)] | None = None


class NewVolume(Body):
    name: Name
