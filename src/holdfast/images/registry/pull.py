"""Pulls an image: the manifest, its blobs, and the import of both as an OCI layout.

Several blobs are fetched at once, and passed to the store in the order of the layers. The store unpacks them, with the
same checks as for every archive.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.api.errors.boxes import BoxError, HostileArchive, ImageNotFound, Unsupported
from holdfast.api.errors.images import NotInRegistry, RegistryFailed, RegistryRefused
from holdfast.api.images import Image
from holdfast.api.progress import Progress, Silent
from holdfast.boxes.images import ImageStore, local_name
from holdfast.egress.models.upstream import Upstream
from holdfast.images.registry.authentication import Credentials
from holdfast.images.registry.blobs import Blobs
from holdfast.images.registry.client import Registry
from holdfast.images.registry.manifest import Manifest, check_digest, digest_of, read_manifest
from holdfast.images.registry.reference import DOCKER_HUB, Reference, parse_reference
from holdfast.images.tar_stream import END, from_disk, whole
from holdfast.time_limit import time_limit

_PULL_SECONDS: Final = 4 * 3600.0
_DEEPEST_INDEX: Final = 3


class Puller:
    """Pulls images into the stores of providers. Owns its folder of blobs, and nothing else between pulls."""

    def __init__(self, folder: Path, make_upstream: Callable[[], Upstream], mirrors: Sequence[str] = ()) -> None:
        """`mirrors` are URLs that are asked before Docker Hub for its images."""
        self._folder = folder
        self._make_upstream = make_upstream
        self._mirrors = tuple(mirrors)

    async def pull(
        self,
        store: ImageStore,
        name: str,
        *,
        save_as: str | None = None,
        credentials: Credentials | None = None,
        insecure: bool = False,
        progress: Progress | None = None,
    ) -> Image:
        """Pull an image under its own name, or under `save_as`.

        If the image is up to date this takes one request, or none if a digest is asked for.

        Raises `InvalidSpec`, `Unsupported`, `NotInRegistry`, `RegistryRefused`, `RegistryFailed`, `NoSpace`, and what
        the import raises for hostile images.
        """
        progress = progress or Silent()
        reference = parse_reference(name)
        called = local_name(save_as) if save_as else reference.local_name
        if not store.takes_pulled:
            raise Unsupported(
                "this provider pulls images itself when a box is created with them",
                hint=f"holdfast box create --image {called}, with the same --provider",
            )
        known = await _known(store, called)
        if known is not None and known.pulled is not None and known.pulled == reference.digest:
            return _up_to_date(known, progress)
        upstream = self._make_upstream()
        try:
            async with time_limit(_PULL_SECONDS):
                registry, found = await self._find(upstream, reference, known, credentials, insecure)
                if found is None:
                    assert known is not None
                    return _up_to_date(known, progress)
                return await self._take(store, registry, found, called, progress)
        except TimeoutError:
            raise RegistryFailed(f"{reference} was not pulled within {_PULL_SECONDS / 3600:.0f} hours") from None
        finally:
            await upstream.close()

    async def _find(
        self,
        upstream: Upstream,
        reference: Reference,
        known: Image | None,
        credentials: Credentials | None,
        insecure: bool,
    ) -> tuple[Registry, _Found | None]:
        """Asks mirrors first. Credentials are sent only to the registry itself."""
        for mirror in self._mirrors if reference.registry == DOCKER_HUB else ():
            registry = Registry(upstream, reference, address=mirror)
            with contextlib.suppress(NotInRegistry, RegistryRefused, RegistryFailed):
                return registry, await _resolve(registry, reference, known)
        registry = Registry(upstream, reference, credentials=credentials, insecure=insecure)
        return registry, await _resolve(registry, reference, known)

    async def _take(
        self, store: ImageStore, registry: Registry, found: _Found, called: str, progress: Progress
    ) -> Image:
        manifest = found.manifest
        blobs = Blobs(self._folder)
        await asyncio.to_thread(blobs.make_room, manifest.size)
        progress.begin("download", f"{called}, {_layers(manifest)}", total=manifest.size)
        try:
            async with asyncio.TaskGroup() as group:
                downloads = {
                    blob.digest: group.create_task(blobs.fetch(registry, blob, progress.advance))
                    for blob in manifest.blobs
                }
                image = await store.import_pulled(called, _layout(manifest, downloads, progress), found.digest)
        except BaseExceptionGroup as failures:
            raise _cause(failures) from None
        progress.end()
        await asyncio.to_thread(blobs.forget_old)
        return image


class _Found:
    """An image in a registry, and the digest that its tag names: of the manifest, or of a list that contains it."""

    def __init__(self, manifest: Manifest, digest: str) -> None:
        self.manifest = manifest
        self.digest = digest


async def _resolve(registry: Registry, reference: Reference, known: Image | None) -> _Found | None:
    """Returns the image in the registry, or None if it is the known one."""
    if known is not None and known.pulled is not None and await registry.digest() == known.pulled:
        return None
    data = await registry.manifest(reference.version)
    top = digest_of(data)
    if reference.digest is not None:
        check_digest(data, reference.digest)
    for _ in range(_DEEPEST_INDEX):
        found = read_manifest(data)
        if isinstance(found, Manifest):
            return _Found(found, top)
        data = await registry.manifest(found.digest)
        check_digest(data, found.digest)
    raise HostileArchive("the registry sends lists of platforms in lists of platforms")


async def _known(store: ImageStore, name: str) -> Image | None:
    with contextlib.suppress(ImageNotFound):
        return await store.get(name)
    return None


def _up_to_date(image: Image, progress: Progress) -> Image:
    progress.skip("image", f"{image.name} is up to date")
    return image


def _cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first failure: the import also fails if a blob does not arrive."""
    flat = [each for each in failures.exceptions if not isinstance(each, asyncio.CancelledError)]
    ours = [each for each in flat if isinstance(each, BoxError)]
    return (ours or flat or list(failures.exceptions))[0]


async def _layout(
    manifest: Manifest, downloads: Mapping[str, asyncio.Task[Path]], progress: Progress
) -> AsyncIterator[bytes]:
    """Yields the image as an OCI layout in a tar stream: documents first, then each blob when it has arrived."""
    descriptor = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": manifest.digest,
        "size": len(manifest.data),
    }
    documents = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [descriptor]}).encode(),
        _place(manifest.digest): manifest.data,
    }
    for name, data in documents.items():
        yield whole(name, data)
    for blob in manifest.blobs:
        path = await asyncio.shield(downloads[blob.digest])
        async for piece in from_disk(_place(blob.digest), path, blob.size):
            yield piece
    progress.end()
    progress.begin("unpack", _layers(manifest))
    yield END


def _layers(manifest: Manifest) -> str:
    return f"{len(manifest.layers)} layer{'s' if len(manifest.layers) > 1 else ''}"


def _place(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"
