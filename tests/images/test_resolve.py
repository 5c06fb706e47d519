"""Versions, relations and which packages a system is made of. Pure."""

from __future__ import annotations

import pytest

from holdfast.images.debian.index import PackageIndex
from holdfast.images.debian.relations import Relation, parse_relations
from holdfast.images.debian.resolve import resolve
from holdfast.images.debian.versions import compare, satisfies
from holdfast.images.errors import MirrorFailed, Unresolvable

MIRROR = "http://mirror.invalid/debian"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("1.0", "1.1"), ("1.9", "1.10"), ("1.0~rc1", "1.0"), ("1.0~~", "1.0~"), ("1.0", "1.0+b1"), ("1.0-1", "1.0-2"),
        ("2.0", "1:1.0"), ("1.0a", "1.0+"), ("1.0", "1.0a"), ("1.0-1~deb12u1", "1.0-1"), ("1.2-3-4", "1.2-3-5"),
        ("0", "00001"), ("9.2.0~ds1-1", "9.2.0-1"), ("1.2.3", "1.2.3-0a"), ("5.36.0-7+deb12u2", "5.36.0-7+deb12u10"),
    ],
)  # fmt: skip
def test_one_version_comes_before_the_other(earlier: str, later: str) -> None:
    assert compare(earlier, later) < 0 < compare(later, earlier)
    assert satisfies(earlier, "<<", later)
    assert not satisfies(earlier, ">=", later)


@pytest.mark.parametrize(("one", "other"), [("1.0", "0:1.0"), ("1.0", "1.0-0"), ("1.01", "1.1"), ("1.0-1", "1.0-01")])
def test_versions_that_mean_the_same(one: str, other: str) -> None:
    assert compare(one, other) == 0
    assert satisfies(one, "=", other)


def test_relations_are_read_as_policy_writes_them() -> None:
    text = "libc6 (>= 2.36), a:any | b (<< 2~) , c [!amd64], d [amd64 arm64] <!nocheck>,\n e(=1:2-3),"
    assert parse_relations(text, "amd64") == (
        (Relation("libc6", ">=", "2.36"),),
        (Relation("a"), Relation("b", "<<", "2~")),
        (Relation("d"),),
        (Relation("e", "=", "1:2-3"),),
    )
    with pytest.raises(ValueError, match="no relation"):
        parse_relations("a; rm -rf /", "amd64")


def stanza(name: str, version: str = "1.0", **fields: str) -> str:
    told = {"Package": name, "Version": version, "Architecture": "amd64", "Filename": f"pool/{name}.deb", "Size": "9",
            "SHA256": "0" * 64, **{name.replace("_", "-"): value for name, value in fields.items()}}  # fmt: skip
    return "".join(f"{name}: {value}\n" for name, value in told.items())


def index_of(*stanzas: str) -> PackageIndex:
    index = PackageIndex("amd64")
    index.add("\n".join(stanzas), MIRROR)
    return index


AWK = (stanza("gawk", Provides="awk"), stanza("mawk", Provides="awk", Priority="required"))


@pytest.mark.parametrize(
    ("stanzas", "wanted", "expected"),
    [
        pytest.param(
            [stanza("a", Depends="b"), stanza("b", Pre_Depends="c"), stanza("c"), stanza("d")],
            ["a"],
            "a b c",
            id="what is needed, and nothing else",
        ),
        pytest.param([stanza("a", Depends="b"), stanza("b", Depends="a")], ["a"], "a b", id="circles"),
        pytest.param(
            [stanza("a", Depends="b | c"), stanza("b"), stanza("c")], ["a"], "a b", id="the first alternative"
        ),
        pytest.param(
            [stanza("a", Depends="b | c"), stanza("c")], ["a"], "a c", id="the second, where it alone is there"
        ),
        pytest.param([stanza("a", Depends="b (>= 2) | c"), stanza("b"), stanza("c")], ["a"], "a c", id="by version"),
        pytest.param(
            [stanza("a", Depends="b | c, d"), stanza("b"), stanza("c"), stanza("d", Depends="c")],
            ["a"],
            "a c d",
            id="plain needs are decided before choices",
        ),
        pytest.param([stanza("a", Depends="awk"), *AWK], ["a"], "a mawk", id="a virtual package, by the most usual"),
        pytest.param([stanza("a", Depends="awk"), *AWK], ["a", "gawk"], "a gawk", id="a virtual one that is there"),
        pytest.param(
            [stanza("a", Depends="v (>= 2)"), stanza("b", Provides="v"), stanza("c", Provides="v (= 3)")],
            ["a"],
            "a c",
            id="a version is fulfilled by one that is provided",
        ),
        pytest.param(
            [stanza("a", Depends="b | c"), stanza("b", Conflicts="a"), stanza("c")],
            ["a"],
            "a c",
            id="what conflicts is passed over",
        ),
        pytest.param([stanza("a", Provides="v", Conflicts="v")], ["a"], "a", id="none conflicts with itself"),
        pytest.param(
            [stanza("a", Conflicts="b (<< 2)"), stanza("b", "2")], ["a", "b"], "a b", id="conflicts by version"
        ),
        pytest.param(
            [stanza("a", Depends="only:any, b:amd64"), stanza("only"), stanza("b")], ["a"], "a b only", id="qualifiers"
        ),
        pytest.param(
            [stanza("a", Architecture="arm64"), stanza("a", "0.5", Architecture="all")],
            ["a"],
            "a",
            id="of this architecture, or all",
        ),
    ],
)
def test_what_a_system_is_made_of(stanzas: list[str], wanted: list[str], expected: str) -> None:
    assert [package.name for package in resolve(index_of(*stanzas), wanted)] == expected.split()


def test_the_latest_version_of_all_sources_counts() -> None:
    index = index_of(stanza("a", "1.0"), stanza("a", "1.0-1+deb12u2"))
    index.add(stanza("a", "1.0-1+deb12u10", Filename="pool/security.deb"), "http://security.invalid/")
    index.add(stanza("a", "0.9"), MIRROR)
    [package] = resolve(index, ["a"])
    assert (package.version, package.url) == ("1.0-1+deb12u10", "http://security.invalid/pool/security.deb")


def test_every_system_has_what_is_essential_or_required() -> None:
    index = index_of(stanza("a", Essential="yes"), stanza("b", Priority="required"), stanza("c", Priority="important"))
    assert index.essential() == ["a", "b"]


@pytest.mark.parametrize(
    ("stanzas", "wanted", "message", "hint"),
    [
        pytest.param([stanza("ripgrep")], ["ripgerp"], "there is no package ripgerp", "perhaps ripgrep", id="a typo"),
        pytest.param(
            [stanza("a", Depends="b"), stanza("b", Depends="c")],
            ["a"],
            "b 1.0 needs c, and no source has it",
            "a → b",
            id="a chain to what is not there",
        ),
        pytest.param(
            [stanza("a", Depends="b (>= 2)"), stanza("b")],
            ["a"],
            "a 1.0 needs b (>= 2), and there is only b 1.0",
            "because of a",
            id="an older one",
        ),
        pytest.param(
            [stanza("a", Depends="b"), stanza("b", Conflicts="a")],
            ["a"],
            "a 1.0 needs b, and b 1.0 conflicts with a 1.0",
            "",
            id="a need that conflicts",
        ),
        pytest.param(
            [stanza("a", Conflicts="b"), stanza("b")],
            ["a", "b"],
            "a 1.0 conflicts with b 1.0",
            "leave one",
            id="wants that conflict",
        ),
    ],
)
def test_what_cannot_be_had_says_why(stanzas: list[str], wanted: list[str], message: str, hint: str) -> None:
    with pytest.raises(Unresolvable) as raised:
        resolve(index_of(*stanzas), wanted)
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    "fields",
    [
        {"Filename": "../../etc/passwd"}, {"Filename": "/etc/passwd"}, {"Size": "-1"}, {"Size": "many"},
        {"SHA256": "short"}, {"Size": str(1 << 60)}, {"Depends": "(>= 1)"},
    ],
)  # fmt: skip
def test_an_index_that_makes_no_sense_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(MirrorFailed, match="makes no sense"):
        resolve(index_of(stanza("a", **fields)), ["a"])
