"""`holdfast tenant` and `holdfast member`."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_a_tenant_has_threads_and_members_of_its_own(cli: Cli) -> None:
    assert "it takes small letters and digits, at most 16" in " ".join(cli("tenant", "new", "Bad Name").err.split())
    made = cli("tenant", "new", "acme")
    assert made.exit == 0, made.err
    key = ("--api-key", made.out.strip())
    assert made.out.startswith("hf_acme.")
    try:
        assert [each["name"] for each in cli("tenant", "list", "--json").json()["tenants"]] == ["acme"]
        assert cli("tenant", "new", "acme").exit != 0
        assert cli("thread", "list", "--json", *key).json()["threads"] == []
        assert cli("tenant", "list", *key).exit != 0
        again = cli("tenant", "key", "acme", "spare")
        assert again.out.startswith("hf_acme.")

        limits = cli("tenant", "limit", "acme", "--boxes", "2", "--storage", "5G", "--json").json()
        assert (limits["boxes"], limits["storage"], limits["runs"]) == (2, 5 * 1024**3, None)
        assert "5" in cli("tenant", "limit", "acme", "--none", "--runs", "5").out
        assert "no limit" in cli("tenant", "limit", "acme").out
        assert "$12.50 a day" in cli("tenant", "limit", "acme", "--spend", "12.5").out

        assert "kim" in cli("member", "add", "kim", "--role", "viewer", *key).out
        assert "member already" in cli("member", "add", "kim", *key).err
        kim = ("--api-key", cli("key", "create", "laptop", "--member", "kim", *key).out.strip())
        assert cli("thread", "new", "a thread", *kim).exit != 0
        assert "member" in cli("member", "role", "kim", "member", *key).out
        assert cli("thread", "new", "a thread", *kim).exit == 0
        assert "kim" in cli("member", "list", *key).out
        assert "laptop (kim)" in cli("key", "list", *key).out
        assert cli("member", "remove", "kim", "--yes", *key).exit == 0
        assert cli("thread", "list", *kim).exit != 0
        assert "there is no member" in cli("member", "role", "kim", "owner", *key).err
    finally:
        assert cli("tenant", "remove", "acme", "--yes").exit == 0
    assert "no tenants" in cli("tenant", "list").out
