from __future__ import annotations

from collections.abc import Collection

from holdfast.api.environments import GapKind
from holdfast.boxes.capabilities import Capability
from holdfast.environments.grants import Given
from holdfast.environments.parsing import parse_environment
from holdfast.environments.preflight import Problem, find_gaps

EVERYTHING = """\
provider = "nowhere"
image = "none"
agent = "nobody"
models = ["cheap", "best"]
secrets = ["A", "B"]
optional_secrets = ["C"]
setup = ["make"]
egress = ["default"]
[limits]
cpu = 1
"""


class Nothing:
    """A server that has nothing."""

    can: Collection[Capability] | Problem = Problem("there is no provider nowhere", "holdfast provider list")
    models: frozenset[str] = frozenset()

    def capabilities(self, provider: str) -> Collection[Capability] | Problem:
        return self.can

    def agent(self, name: str) -> Problem | None:
        return Problem(f"there is no agent {name}", "holdfast agent list")

    def model(self, name: str, agent: str | None) -> Problem | None:
        return None if name in self.models else Problem(f"there is no model {name}", "holdfast model add")

    def only_model(self) -> Problem | None:
        return Problem("there is no model", "holdfast model add")

    def has_secret(self, name: str) -> bool:
        return False


def kinds(text: str, known: Nothing, given: Given | None = None, **more: object) -> list[tuple[str, str, bool]]:
    gaps = find_gaps(parse_environment(text), known, given or Given(), **more)  # type: ignore[arg-type]
    assert all(each.message and each.next_step for each in gaps)
    return [(each.kind.value, each.name, each.required) for each in gaps]


def test_every_gap_is_listed_at_once() -> None:
    missing = Problem("there is no image none", "holdfast image pull none")
    assert kinds(EVERYTHING, Nothing(), missing_image=missing, asks=("secret A",)) == [
        ("consent", "secret A", True),
        ("provider", "nowhere", True),
        ("image", "none", True),
        ("agent", "nobody", True),
        ("model", "cheap", True),
        ("model", "best", True),
        ("secret", "A", True),
        ("secret", "B", True),
        ("secret", "C", False),
    ]


def test_each_missing_capability_of_the_provider_is_a_gap() -> None:
    known = Nothing()
    known.can = frozenset((Capability.CPU_LIMIT,))
    found = [name for kind, name, _ in kinds(EVERYTHING, known) if kind == "capability"]
    assert found == ["images", "snapshots", "secrets", "network-allow"]


def test_one_usable_model_of_the_chain_is_enough() -> None:
    known = Nothing()
    known.models = frozenset(("best",))
    found = [each for each in kinds(EVERYTHING, known) if each[0] == "model"]
    assert found == [("model", "cheap", False)]


def test_what_the_caller_gives_is_not_looked_for() -> None:
    given = Given(agent=True, model=True, provider=True, image=True, network=True)
    assert [kind for kind, _, _ in kinds(EVERYTHING, Nothing(), given)] == ["secret", "secret", "secret"]


def test_what_the_caller_chooses_is_checked_in_place_of_the_environment() -> None:
    given = Given(agent=True, model=True, provider=True, image=True, network=True)
    chosen = {"agent": "unheard-of", "models": ("unknown", "spare")}
    found = kinds(EVERYTHING, Nothing(), given, **chosen)
    assert found[:3] == [("agent", "unheard-of", True), ("model", "unknown", True), ("model", "spare", True)]
    known = Nothing()
    known.models = frozenset(("spare",))
    assert ("model", "unknown", False) in kinds(EVERYTHING, known, given, **chosen)
    only_agent = kinds(EVERYTHING, Nothing(), Given(agent=True, provider=True, image=True, network=True), agent="x")
    assert [each[:2] for each in only_agent[:3]] == [("agent", "x"), ("model", "cheap"), ("model", "best")]


def test_an_environment_without_agent_and_model_needs_them_from_the_caller() -> None:
    assert [(kind, name) for kind, name, _ in kinds("", Nothing())][1:] == [("agent", ""), ("model", "")]


def test_all_kinds_are_words_of_the_api() -> None:
    assert {kind for kind, _, _ in kinds(EVERYTHING, Nothing())} <= {each.value for each in GapKind}
