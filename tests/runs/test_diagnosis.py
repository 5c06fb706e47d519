"""A diagnosis names what keeps a box from the network. Pure: a table of what programs say, and of what it means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.api.run.hints import hint_for_session
from holdfast.api.run.info import RunStatus
from holdfast.api.session.sessions import SessionState
from holdfast.runs.blocked_egress import Block, explain, find_blocked, read_line, remedy, still_away
from holdfast.runs.diagnosis import _more_budget, diagnose
from holdfast.runs.reconcile.rules import Thresholds
from holdfast.threads.run_events import Run, ThreadRuns
from holdfast.threads.session_events import Session

RESET = "curl: (35) OpenSSL SSL_connect: Connection reset by peer in connection to api.example.com:443"
AWAY = "runner: the server does not answer: TLS: UNEXPECTED_EOF_WHILE_READING"


@pytest.mark.parametrize(
    ("line", "block", "host"),
    [
        (RESET, Block.TLS_RESET, "api.example.com"),
        ("curl: (35) Recv failure: Connection reset by peer", Block.TLS_RESET, None),
        ("curl: (35) TLS connect error: error:00000000:lib(0)::reason(0)", Block.TLS_RESET, None),
        ("fatal: OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to git.example.com:443",
         Block.TLS_RESET, "git.example.com"),
        ("fatal: gnutls_handshake() failed: The TLS connection was non-properly terminated.",
         Block.TLS_RESET, None),
        ("Client network socket disconnected before secure TLS connection was established", Block.TLS_RESET, None),
        ("ssl.SSLEOFError: EOF occurred in violation of protocol (_ssl.c:1006)", Block.TLS_RESET, None),
        (AWAY, Block.TLS_RESET, None),
        ("curl: (56) Received HTTP code 403 from proxy after CONNECT", Block.PROXY_REFUSES, None),
        ("curl: (56) CONNECT tunnel failed, response 403", Block.PROXY_REFUSES, None),
        ("ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 403 Forbidden'))",
         Block.PROXY_REFUSES, None),
        ("Proxy response (403) !== 200 when HTTP Tunneling", Block.PROXY_REFUSES, None),
        ("runner: the server does not answer: the proxy of this box refuses a.example.com:443: HTTP/1.1 403 No",
         Block.PROXY_REFUSES, "a.example.com"),
        ("GET evil.example.org is blocked by the network policy of this box (b-1): no rule allows it.",
         Block.POLICY, "evil.example.org"),
        ("curl: (6) Could not resolve host: pypi.example.com", Block.NO_NAME, "pypi.example.com"),
        ("npm error request to x failed, reason: getaddrinfo ENOTFOUND registry.example.com",
         Block.NO_NAME, "registry.example.com"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", Block.NO_NAME, None),
        ("connect ENETUNREACH 93.184.215.14:443", Block.NO_ROUTE, None),
        ("curl: (60) SSL certificate problem: self-signed certificate in certificate chain", Block.CERTIFICATE, None),
        ("runner: the server does not answer: 502: the relay cannot reach the Holdfast server at https://h.example.com",
         Block.RELAY_UPSTREAM, "h.example.com"),
        ("runner: the server does not answer: the proxy of this box refuses a.example.com:443: HTTP/1.1 502 Bad",
         Block.NO_ROUTE, "a.example.com"),
        ("runner: the server does not answer: the server closed the connection", None, None),
        ("curl: (22) The requested URL returned error: 403", None, None),
        ("curl: (7) Failed to connect to localhost port 8080 after 0 ms: Couldn't connect to server", None, None),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", None, None),
        ("000", None, None),
        ("", None, None),
    ],
)  # fmt: skip
def test_signs_of_a_blocked_network(line: str, block: Block | None, host: str | None) -> None:
    found = read_line(line)
    assert (None if found is None else (found.block, found.host)) == (None if block is None else (block, host))


def test_the_latest_sign_counts_and_one_of_the_runner_more() -> None:
    assert find_blocked(["fine", "also\nfine"]) is None
    latest = find_blocked([RESET, "curl: (6) Could not resolve host: b.example.com", "fine"])
    assert latest is not None
    assert latest.host == "b.example.com"
    found = find_blocked([AWAY, RESET])
    assert found is not None
    assert found.by_runner
    assert find_blocked([still_away(f"{AWAY}\nrunner: the server answers again\n")]) is None


def test_the_remedy_fits_who_blocks() -> None:
    reset, away = read_line(RESET), read_line(AWAY)
    assert reset is not None
    assert away is not None
    assert remedy(reset, "b-1", "docker") == "holdfast box network b-1 --allow api.example.com, with the rules to keep"
    assert remedy(reset, "b-1", "daytona").endswith("do without direct networking")
    assert "holdfast relay" in remedy(away, "b-1", "daytona")
    assert "to api.example.com: TLS is reset" in explain(reset)


def diagnosed(line: str, status: RunStatus, silence: int) -> tuple[bool | None, str | None]:
    run = Run("r-1", 1, "pi", "m", "sprites", 0, box="b-1", status=status, ended_by="runner")
    found = diagnose(
        "t-1", replace(ThreadRuns(), latest=run, count=1), launching=False, silence=silence, look=None,
        thresholds=Thresholds(), blocked=find_blocked([line]),
    )  # fmt: skip
    (egress,) = [each for each in found.findings if each.stage == "egress"]
    return egress.ok, found.next_step


def test_it_is_an_error_if_the_run_failed_or_its_runner_is_cut_off() -> None:
    long = Thresholds().soft
    assert diagnosed(RESET, RunStatus.RUNNING, 0)[0] is None
    assert diagnosed(RESET, RunStatus.COMPLETED, 0)[0] is None
    assert diagnosed(RESET, RunStatus.FAILED, 0)[0] is False
    assert diagnosed(AWAY, RunStatus.RUNNING, 0)[0] is None
    ok, next_step = diagnosed(AWAY, RunStatus.RUNNING, long)
    assert ok is False
    assert next_step is not None
    assert "the relay of provider sprites" in next_step


@pytest.mark.parametrize(
    ("scope", "subject", "unit", "command"),
    [
        ("run", "r-1", "cost", "holdfast resume THREAD --budget DOLLARS"),
        ("thread", "t-1", "cost", "holdfast budget set t-1 --cost DOLLARS, or holdfast budget remove t-1;"),
        ("tree", "t-1", "tokens", "holdfast budget set t-1 --tree --tokens N, or holdfast budget remove t-1 --tree;"),
        ("day", "2026-11-17", "cost", "holdfast budget set --day --cost DOLLARS, or holdfast budget remove --day;"),
    ],
)
def test_the_advice_for_a_used_up_budget_changes_that_budget(scope: str, subject: str, unit: str, command: str) -> None:
    assert command in _more_budget({"scope": scope, "subject": subject, "unit": unit})


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("continue with: holdfast resume t-1", 'continue with: holdfast session prompt t-1 "…"'),
        ("continue with holdfast resume t-1; --timeout sets a longer limit, --timeout 0 none",
         'continue with holdfast session prompt t-1 "…"'),
        ("give it more: holdfast resume t-1 --disk SIZE; its files are kept",
         "give it more: a new session can have it: holdfast session new --disk SIZE"),
        ("holdfast resume PARENT --budget DOLLARS", "holdfast resume PARENT --budget DOLLARS"),
        ("holdfast thread show t-1", "holdfast thread show t-1"),
    ],
)  # fmt: skip
def test_what_to_do_about_a_session_is_said_with_its_commands(hint: str, said: str) -> None:
    assert hint_for_session(hint) == said


@pytest.mark.parametrize("has_run", [True, False])
def test_a_session_goes_on_with_a_prompt(has_run: bool) -> None:
    run = Run("r-1", 1, "pi", "m", "local", 0, box="b-1", status=RunStatus.FAILED, ended_by="runner")
    found = diagnose(
        "t-1",
        ThreadRuns(latest=run if has_run else None, session=Session(SessionState.RUNNING, 1, 0, "pi", "m")),
        launching=False, silence=0, look=None, thresholds=Thresholds(),
    )  # fmt: skip
    steps = [each.next_step for each in found.findings if each.next_step]
    assert any('holdfast session prompt t-1 "…"' in each for each in steps)
    assert not any("holdfast resume" in each for each in steps)
    assert "holdfast resume" not in (found.next_step or "")
