"""What is decided about a request, by table."""

from __future__ import annotations

import pytest

from holdfast.api.box.network import Network, NetworkPolicy, Rule
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.egress.addresses import refusal
from holdfast.egress.box_access import Bucket
from holdfast.egress.policy import Allowance, Target, allowance, host_matches


@pytest.mark.parametrize(
    ("rules", "target", "allowed"),
    [
        (["example.com"], ("example.com", 443, "CONNECT"), True),
        (["example.com"], ("example.com", 80, "GET"), True),
        (["example.com"], ("example.com", 8080, "GET"), False),
        (["example.com"], ("www.example.com", 443, "CONNECT"), False),
        (["example.com"], ("notexample.com", 443, "CONNECT"), False),
        (["*.example.com"], ("www.example.com", 443, "CONNECT"), True),
        (["*.example.com"], ("a.b.example.com", 443, "CONNECT"), True),
        (["*.example.com"], ("example.com", 443, "CONNECT"), False),
        (["*.example.com"], ("notexample.com", 443, "CONNECT"), False),
        (["*.example.com"], (".example.com", 443, "CONNECT"), False),
        (["example.com:22,443"], ("example.com", 22, "CONNECT"), True),
        (["example.com:22,443"], ("example.com", 80, "GET"), False),
        (["GET,HEAD example.com"], ("example.com", 80, "HEAD"), True),
        (["GET,HEAD example.com"], ("example.com", 80, "POST"), False),
        (["GET example.com"], ("example.com", 443, "CONNECT"), False),
        (["GET example.com", "example.com:443"], ("example.com", 443, "CONNECT"), True),
        (["93.184.215.14"], ("93.184.215.14", 80, "GET"), True),
        (["*.184.215.14.example"], ("93.184.215.14", 80, "GET"), False),
        (["[2606:4700:0::1111]:443"], ("2606:4700::1111", 443, "CONNECT"), True),
        (["93.184.0.0/16"], ("93.184.215.14", 443, "CONNECT"), True),
        (["93.184.0.0/16"], ("93.185.0.1", 443, "CONNECT"), False),
        (["93.184.0.0/16"], ("93.184.215.14", 22, "CONNECT"), False),
        (["93.184.0.0/16:22"], ("93.184.215.14", 22, "CONNECT"), True),
        (["93.184.215.14/32"], ("93.184.215.14", 80, "GET"), True),
        (["0.0.0.0/0"], ("example.com", 80, "GET"), False),
        (["0.0.0.0/0"], ("2606:4700::1111", 80, "GET"), False),
        (["[2606:4700::/32]:443"], ("2606:4700::1111", 443, "CONNECT"), True),
        (["2606:4700::/32"], ("2606:4701::1111", 443, "CONNECT"), False),
        ([], ("example.com", 443, "CONNECT"), False),
    ],
)
def test_rules(rules: list[str], target: tuple[str, int, str], allowed: bool) -> None:
    ruling = Allowance(Network.ALLOW, tuple(Rule.parse(rule) for rule in rules)).judge(Target(*target))
    assert ruling.allowed is allowed
    assert ruling.why


DEFAULTS = (Rule.parse("registry.example"),)
LISTED = NetworkPolicy(Network.ALLOW, ("a.example",))


@pytest.mark.parametrize(
    ("policy", "environment", "mode", "hosts"),
    [
        (NetworkPolicy(), LISTED, Network.NONE, []),
        (NetworkPolicy(Network.OPEN), LISTED, Network.OPEN, []),
        (LISTED, None, Network.ALLOW, ["a.example"]),
        (LISTED, NetworkPolicy(Network.ALLOW, ("b.example",)), Network.ALLOW, ["a.example"]),
        (
            NetworkPolicy(Network.ALLOW, ("a.example", "default")),
            None,
            Network.ALLOW,
            ["a.example", "registry.example"],
        ),
        (NetworkPolicy(Network.ALLOW, ("default",)), LISTED, Network.ALLOW, ["registry.example"]),
        (NetworkPolicy(Network.ALLOW), None, Network.ALLOW, ["registry.example"]),
        (NetworkPolicy(Network.ALLOW), LISTED, Network.ALLOW, ["a.example"]),
        (NetworkPolicy(Network.ALLOW), NetworkPolicy(Network.ALLOW), Network.ALLOW, ["registry.example"]),
        (NetworkPolicy(Network.ALLOW), NetworkPolicy(Network.NONE), Network.NONE, []),
        (NetworkPolicy(Network.ALLOW), NetworkPolicy(Network.OPEN), Network.OPEN, []),
    ],
)
def test_a_box_that_lists_nothing_gets_what_its_environment_has_or_the_default_list(
    policy: NetworkPolicy, environment: NetworkPolicy | None, mode: Network, hosts: list[str]
) -> None:
    found = allowance(policy, environment, DEFAULTS)
    assert found.mode is mode
    assert [rule.host for rule in found.rules] == hosts


@pytest.mark.parametrize("text", ["93.184.0.0/16", "93.184.0.0/16:22,443", "[2606:4700::/32]:443", "GET 93.184.0.0/16"])
def test_a_range_is_written_as_it_is_read(text: str) -> None:
    assert str(Rule.parse(text)) == text


@pytest.mark.parametrize("text", ["93.184.215.14/16", "93.184.0.0/33", "example.com/24", "93.184.0.0/", "/24", "*.1/8"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="network rule"):
        Rule.parse(text)


def test_a_wildcard_covers_what_is_below_and_not_itself() -> None:
    assert host_matches("*.a.b", "x.a.b")
    assert not host_matches("*.a.b", "a.b")
    assert not host_matches("*.a.b", "xa.b")


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "64:ff9b::5db8:d70e", "::ffff:8.8.8.8"]
)
def test_public_addresses_pass(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize("address", ["", "localhost", "1.2.3", "fe80::1%eth0", "1.2.3.4/8"])
def test_what_is_no_address_does_not_pass(address: str) -> None:
    assert refusal(address) is not None


def test_a_bucket_lets_a_burst_through_and_then_no_more_than_its_rate() -> None:
    now = 100.0
    bucket = Bucket(10, burst=5, clock=lambda: now)
    assert bucket.take(5) == 0
    assert bucket.take(10) == pytest.approx(1.0)
    assert bucket.take(10) == pytest.approx(2.0)
    now += 2.5
    assert bucket.take(5) == pytest.approx(0.0)
    now += 1000
    assert bucket.take(6) == pytest.approx(0.1)
