"""How boxes get packages: which requests are for a registry of this machine, and which answers are kept.

Clients in a box ask in the clear, because nobody else is between a box and its proxy, and the proxy asks the registry
over TLS. So no TLS has to be ended for that. There are two ways to name a registry:

- pip: a path of the guest API, `http://127.0.0.1:3128/packages/HOST/PATH`. pip trusts loopback without TLS. The links
  of index pages are mapped to such paths.
- npm: a name of its own, `http://HOST.packages.internal/PATH`. npm puts it in the place of the registry's host in the
  URLs of tarballs, but writes the real ones into lock files.
"""

from __future__ import annotations

import re
import ssl
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

from holdfast.boxes.network_policy import GUEST_API_URL
from holdfast.egress.http_head import BadHead, Body, Headers, Request, parse_authority, values
from holdfast.egress.packages.cache import Digest, PackageCache
from holdfast.egress.policy import DefaultList

PATH: Final = "/packages/"
NAMES: Final = ".packages.internal"
PIP: Final = "pip"
NPM: Final = "npm"
FOLDER: Final = "/tmp/.holdfast/config"
"""In a box: settings of lowest priority, below everything that an image, a user or a project sets."""
_FILES: Final = {
    f"{FOLDER}/pip/pip.conf": f"[global]\nindex-url = {GUEST_API_URL}{PATH}{PIP}/\n".encode(),
    f"{FOLDER}/npmrc": f"registry=http://{NPM}{NAMES}/\n".encode(),
}
_FILE_NAME: Final = re.compile(rb"/[A-Za-z0-9._~@%+!/-]*\.(?:whl|whl\.metadata|tar\.gz|tar\.bz2|zip|tgz|egg)")
_PRIVATE: Final = (b"authorization", b"cookie", b"range", b"proxy-authorization")
_MOST_DIGESTS: Final = 100_000
_PIP_VARIABLES: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


@dataclass(frozen=True, slots=True)
class Origin:
    """A server of packages, reached over TLS."""

    host: str
    port: int = 443

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 443 else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """A request of a box to a registry."""

    origin: Origin
    request: Request
    """As the registry gets it."""
    by_path: bool
    """Whether the box knows the registry by a path, so that links have to be mapped."""

    @property
    def url(self) -> str:
        return f"https://{self.origin}{self.request.path.decode('ascii')}"

    @property
    def is_public(self) -> bool:
        """Whether everyone gets the same answer: it reads, and proves nothing."""
        named = {name.lower() for name, _ in self.request.headers}
        return self.request.method == "GET" and self.request.body.empty and named.isdisjoint(_PRIVATE)

    @property
    def is_file(self) -> bool:
        """Whether it is for a file that never changes: one version of a package."""
        path = self.request.path
        return bool(_FILE_NAME.fullmatch(path)) and b".." not in path and b"//" not in path

    @property
    def is_tarball(self) -> bool:
        """Whether it is for a file of npm, which are told by their paths."""
        return self.is_file and b"/-/" in self.request.path and self.request.path.endswith(b".tgz")

    def anew(self) -> Request:
        """Returns the request for a file without anything of the box, which could change what is kept for others."""
        headers: Headers = [(b"Accept", b"*/*"), (b"Accept-Encoding", b"identity"), (b"User-Agent", b"holdfast")]
        return replace(self.request, headers=headers, version=b"HTTP/1.1", upgrade=None, body=Body(0))

    def for_index(self) -> Request:
        """Returns the request for a page that is read here."""
        accepted = b", ".join(values(self.request.headers, b"accept-encoding")).lower()
        headers = [each for each in self.request.headers if each[0].lower() != b"accept-encoding"]
        if self.by_path or b"gzip" in accepted:
            headers.append((b"Accept-Encoding", b"gzip"))
        return replace(self.request, headers=headers)


class NoRegistry(Exception):
    """The request is for no registry of this machine."""


class PackageMirror:
    """Knows the registries of this machine, and has the cache. One for all boxes of a home."""

    def __init__(self, cache: PackageCache, make_trust: Callable[[], ssl.SSLContext]) -> None:
        """`make_trust` returns by what registries are verified. It is called in a thread."""
        self.cache = cache
        self._make_trust = make_trust
        self._origins: frozenset[Origin] = frozenset()
        self._indexes: Mapping[str, str] = {}
        self._environment: Mapping[str, str] = {}
        self._digests: OrderedDict[str, Digest] = OrderedDict()

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """Takes long the first time, so ask in a thread."""
        return self._make_trust()

    def use(self, defaults: DefaultList) -> None:
        """Serve the registries of this list, and no other."""
        self._origins = frozenset(found for url in defaults.registries if (found := _origin(url)) is not None)
        self._indexes = {
            name: url for name, url in defaults.indexes.items() if _origin(url) in self._origins and "@" not in url
        }
        self._environment = self._mapped(defaults.environment)

    # --- for boxes ---

    def environment(self) -> Mapping[str, str]:
        """Returns the variables by which clients in a box come here. They override those of the default list."""
        variables = dict(self._environment)
        if PIP in self._indexes:
            variables["XDG_CONFIG_DIRS"] = f"{FOLDER}:/etc/xdg"
        if (origin := _origin(self._indexes.get(NPM, ""))) is not None:
            variables["npm_config_globalconfig"] = f"{FOLDER}/npmrc"
            variables["npm_config_replace_registry_host"] = origin.host
        return variables

    @staticmethod
    def files() -> Mapping[str, bytes]:
        """Returns the files that these variables need in a box."""
        return _FILES

    @property
    def origins(self) -> Collection[Origin]:
        return self._origins

    # --- requests ---

    def by_path(self, request: Request) -> PackageRequest:
        """Reads a request for a path of the guest API. Raises `NoRegistry`."""
        path = request.path.decode("ascii")
        if not path.startswith(PATH):
            raise NoRegistry(f"this connection is for {PATH}")
        name, _, rest = path.removeprefix(PATH).partition("/")
        rest = f"/{rest}"
        if name in self._indexes:
            index = urlsplit(self._indexes[name])
            rest = index.path.rstrip("/") + rest
            name = index.netloc
        try:
            origin = Origin(*parse_authority(name.encode("ascii"), 443))
        except BadHead:
            raise NoRegistry(f"{name[:300]!r} is not a host") from None
        return PackageRequest(self._known(origin), self._request(request, origin, rest.encode("ascii")), by_path=True)

    def by_name(self, request: Request) -> PackageRequest | None:
        """Reads a request for a name of a registry, or returns None for any other host. Raises `NoRegistry`."""
        if not request.host.endswith(NAMES):
            return None
        host, port = request.host.removesuffix(NAMES), request.port
        index = _origin(self._indexes.get(host, ""))
        origin = index if index is not None else Origin(host, 443 if port == 80 else port)
        return PackageRequest(self._known(origin), self._request(request, origin, request.path), by_path=False)

    def _request(self, request: Request, origin: Origin, path: bytes) -> Request:
        return replace(request, host=origin.host, port=origin.port, path=path, upgrade=None)

    def _known(self, origin: Origin) -> Origin:
        if origin not in self._origins:
            raise NoRegistry(f"{origin} is not a package registry of this machine")
        return origin

    # --- what registries say about files ---

    def learn(self, digests: Mapping[str, Digest]) -> None:
        for url, digest in digests.items():
            self._digests[url] = digest
            self._digests.move_to_end(url)
        while len(self._digests) > _MOST_DIGESTS:
            self._digests.popitem(last=False)

    def digest(self, url: str) -> Digest | None:
        return self._digests.get(url)

    def path_of(self, url: str) -> str:
        """Returns the path by which a box gets a URL here, or the URL itself if it is at no registry."""
        origin = _origin(url)
        if origin is None or origin not in self._origins or "@" in url.partition("//")[2].partition("/")[0]:
            return url
        return f"{PATH}{origin}/{url.partition('//')[2].partition('/')[2]}"

    def _mapped(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns those of the variables whose registries are served here, as they are named here."""
        mapped: dict[str, str] = {}
        for name in _PIP_VARIABLES:
            urls = [self.path_of(url) for url in environment.get(name, "").split()]
            if any(url.startswith(PATH) for url in urls):
                mapped[name] = " ".join(GUEST_API_URL + url if url.startswith(PATH) else url for url in urls)
        for name, url in environment.items():
            origin = _origin(url)
            if not name.startswith("npm_config_") or origin is None or origin not in self._origins:
                continue
            if ":" in origin.host:
                continue  # an address has no names below it
            port = "" if origin.port == 443 else f":{origin.port}"
            mapped[name] = f"http://{origin.host}{NAMES}{port}{urlsplit(url).path}"
            if name == "npm_config_registry":
                mapped["npm_config_replace_registry_host"] = origin.host
        return mapped


def _origin(url: str) -> Origin | None:
    """Returns the server of a URL that is reached over TLS."""
    try:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            return None
        return Origin(*parse_authority(parts.netloc.rpartition("@")[2].encode("ascii"), 443))
    except (ValueError, BadHead):
        return None
