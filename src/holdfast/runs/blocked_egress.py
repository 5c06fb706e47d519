"""Recognises in the output of programs that something between a box and the network blocks it. Pure functions.

A firewall seldom says what it is: it resets TLS, answers with a 403 of its own, or hides names. Each sign is in the
words of the programs that meet it: curl, git, pip, npm and node, Python, and our own runner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOST_TEXT: Final = 64 * 1024
_LONGEST_LINE: Final = 240
RUNNER: Final = "runner: the server does not answer: "
"""How a runner begins the line that says why it cannot post."""
_AGAIN: Final = "runner: the server answers again"


class Block(StrEnum):
    """How a box is kept from a host."""

    POLICY = "policy"
    """By the network policy of the box, which our own proxy keeps."""
    TLS_RESET = "tls-reset"
    PROXY_REFUSES = "proxy-refuses"
    NO_NAME = "no-name"
    NO_ROUTE = "no-route"
    CERTIFICATE = "certificate"
    RELAY_UPSTREAM = "relay-upstream"
    """The relay is reached, but not the server behind it."""


@dataclass(frozen=True, slots=True)
class BlockedEgress:
    block: Block
    line: str
    """The line that shows it."""
    host: str | None = None
    by_runner: bool = False
    """Whether the runner is blocked, so that the run cannot be mirrored. Otherwise a command of the agent is."""


_HOST: Final = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)"
_SIGNS: Final[tuple[tuple[Block, str], ...]] = (
    (Block.RELAY_UPSTREAM, rf"the relay cannot reach the Holdfast server at https?://{_HOST}"),
    (Block.RELAY_UPSTREAM, rf"the Holdfast server at https?://{_HOST}\S* is too slow"),
    (Block.POLICY, rf"[A-Z]+ {_HOST}(?::\d+)? is blocked by the network policy of this box"),
    (Block.POLICY, r"Blocked by the network policy of this box"),
    # curl 35 and its status 000; the same of git, Python and node
    (Block.TLS_RESET, rf"in connection to {_HOST}:443"),
    (Block.TLS_RESET, r"curl: \(35\)"),
    (Block.TLS_RESET, r"gnutls_handshake\(\) failed: (?:The TLS connection was non-properly|Error in the pull)"),
    (Block.TLS_RESET, r"socket disconnected before secure TLS connection was established"),
    (Block.TLS_RESET, r"(?:SSLEOFError|UNEXPECTED_EOF_WHILE_READING|EOF occurred in violation of protocol)"),
    (Block.TLS_RESET, r"TLS handshake (?:failed|error).*(?:reset|EOF)"),
    (Block.TLS_RESET, rf"host='{_HOST}'.*Connection reset by peer"),
    (Block.TLS_RESET, rf"{RUNNER}(?:TLS: |Connection reset by peer)"),
    # a proxy's own 403
    (Block.PROXY_REFUSES, r"Received HTTP code 40[37] from proxy after CONNECT"),
    (Block.PROXY_REFUSES, r"CONNECT tunnel failed, response 40[37]"),
    (Block.PROXY_REFUSES, r"Tunnel connection failed: 40[37]"),
    (Block.PROXY_REFUSES, r"Proxy response \(40[37]\)"),
    (Block.PROXY_REFUSES, rf"the proxy of this box refuses {_HOST}:\d+: HTTP/1\.[01] 40[37]"),
    (Block.PROXY_REFUSES, r"(?i)403 Forbidden.{0,80}\b(?:egress|firewall|blocked by|not in (?:the )?allow)"),
    (Block.CERTIFICATE, r"(?i)self[- ]signed certificate in certificate chain"),
    (Block.CERTIFICATE, r"TLS: the certificate is not trusted"),
    (Block.NO_NAME, rf"Could not resolve host:? '?{_HOST}"),
    (Block.NO_NAME, rf"getaddrinfo (?:ENOTFOUND|EAI_AGAIN) {_HOST}"),
    (Block.NO_NAME, r"(?:Temporary failure in name resolution|the name cannot be resolved)"),
    (Block.NO_ROUTE, rf"the proxy of this box refuses {_HOST}:\d+: HTTP/1\.[01] 5\d\d"),
    (Block.NO_ROUTE, rf"{RUNNER}(?:Connection refused|Connection timed out|timed out|connecting failed)"),
    (Block.NO_ROUTE, rf"Failed to connect to {_HOST} port \d+.*(?:unreachable|No route|timed out|Timeout)"),
    (Block.NO_ROUTE, r"(?:ENETUNREACH|EHOSTUNREACH|Network is unreachable|No route to host)"),
)
"""In the order in which they are tried: the first one that fits a line counts."""
_PATTERNS: Final = tuple((block, re.compile(pattern)) for block, pattern in _SIGNS)


def still_away(words: str) -> str:
    """Returns what a runner has said since the server answered it last."""
    return words.rpartition(_AGAIN)[2]


def find_blocked(texts: Iterable[str]) -> BlockedEgress | None:
    """Returns the latest sign in texts that are given oldest first, or None. A sign of the runner counts more."""
    found: BlockedEgress | None = None
    for text in texts:
        for line in text[-MOST_TEXT:].splitlines():
            seen = read_line(line)
            if seen is not None and (seen.by_runner or found is None or not found.by_runner):
                found = seen
    return found


def read_line(line: str) -> BlockedEgress | None:
    line = line.strip()[:_LONGEST_LINE]
    for block, pattern in _PATTERNS:
        match = pattern.search(line)
        if match is not None:
            host = match.groupdict().get("host")
            return BlockedEgress(block, line, host, line.startswith(RUNNER))
    return None


_HERE: Final = ("local", "docker", "process")
"""Providers whose boxes reach the network only through this server."""
_MEANINGS: Final = {
    Block.POLICY: "the network policy of the box does not allow it",
    Block.TLS_RESET: "TLS is reset, which is how firewalls block hosts by name",
    Block.PROXY_REFUSES: "a proxy before the network refuses it",
    Block.NO_NAME: "the name cannot be resolved in the box",
    Block.NO_ROUTE: "the box has no route there",
    Block.CERTIFICATE: "something in between answers with a certificate of its own",
    Block.RELAY_UPSTREAM: "the relay answers, but does not reach the server",
}


def explain(found: BlockedEgress) -> str:
    who = "the runner" if found.by_runner else "a command"
    to = f" to {found.host}" if found.host else ""
    return f"{who} was blocked{to}: {_MEANINGS[found.block]} ({found.line})"


def remedy(found: BlockedEgress, box: str | None, provider: str) -> str:
    """Returns what to do about it."""
    host = found.host or "HOST"
    if found.block is Block.RELAY_UPSTREAM:
        return "on the host of the relay, check that the server is up and reached: holdfast relay URL"
    if found.block is Block.CERTIFICATE:
        return "give the box the certificate of that authority: SSL_CERT_FILE and NODE_EXTRA_CA_CERTS"
    if found.by_runner and provider in _HERE:
        return f"holdfast box ping {box or 'BOX'}; the run goes on as soon as its box reaches this server"
    if found.by_runner:
        return (
            f"the box does not reach the relay of provider {provider}: check that it runs and that the provider allows"
            " its host; or run one on a host that is allowed (holdfast relay); or remove that setting"
        )
    allow = f"holdfast box network {box or 'BOX'} --allow {host}, with the rules to keep"
    if found.block is Block.POLICY or provider in _HERE:
        return allow
    return f"{allow}; if it is allowed, {provider} itself blocks the host: do without direct networking"
