from __future__ import annotations

import re
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.environments import MAX_TEXT, Service
from holdfast.api.errors.environments import InvalidEnvironment
from holdfast.api.model.budgets import Budget
from holdfast.environments import parsing
from holdfast.environments.environment import Environment, Limits, Repository
from holdfast.environments.parsing import FIELDS, line_of, lines_of, parse_environment

WHOLE = """\
name = "web"
provider = "docker"
image = "python:3.13"
repositories = ["https://git.example.com/a/lib.git@v1", { url = "git@git.example.com:a/x.git", path = "deps/x" }]
setup = ["pip install pytest", "pip install -r requirements.txt"]
inputs = ["requirements.txt", "packages/app"]
agent = "claude"
models = ["anthropic", "openai/gpt-5"]
secrets = ["GITHUB_TOKEN"]
optional_secrets = ["SENTRY_DSN"]
egress = ["default", "api.example.com:443"]
test = "pytest -q"
checkpoints = "off"

[limits]
cpu = 2
memory = "4G"
disk = "20G"
pids = 512
timeout = "2h"

[budget]
cost = 2.5
tokens = 1000

[services]
cache = "redis-server"

[services.db]
command = "postgres -D data"
ready = 5432
timeout = "2m"
environment = { PGDATA = "data" }

[services.web]
command = "make serve"
ready = "curl -f localhost:8000"
"""


def test_every_field_is_read() -> None:
    assert parse_environment(WHOLE) == Environment(
        name="web",
        provider="docker",
        image="python:3.13",
        repositories=(
            Repository("https://git.example.com/a/lib.git", "v1", "lib"),
            Repository("git@git.example.com:a/x.git", None, "deps/x"),
        ),
        services=(
            Service(name="cache", command="redis-server"),
            Service(name="db", command="postgres -D data", port=5432, seconds=120, environment={"PGDATA": "data"}),
            Service(name="web", command="make serve", check="curl -f localhost:8000"),
        ),
        setup=("pip install pytest", "pip install -r requirements.txt"),
        inputs=("requirements.txt", "packages/app"),
        agent="claude",
        models=("anthropic", "openai/gpt-5"),
        secrets=("GITHUB_TOKEN",),
        optional_secrets=("SENTRY_DSN",),
        egress=NetworkPolicy(Network.ALLOW, ("default", "api.example.com:443")),
        limits=Limits(cpu=2.0, memory=4 << 30, disk=20 << 30, pids=512, timeout=7200),
        test="pytest -q",
        budget=Budget(cost=2.5, tokens=1000),
        checkpoints="off",
    )


def test_an_empty_text_says_nothing() -> None:
    assert parse_environment("") == Environment()


def test_no_network_is_a_choice_that_differs_from_none_at_all() -> None:
    assert parse_environment("egress = []").egress == NetworkPolicy(Network.NONE)
    assert parse_environment('egress = "none"').egress == NetworkPolicy(Network.NONE)
    assert parse_environment('egress = "open"').egress == NetworkPolicy(Network.OPEN)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("image = 3", "line 1: image: 3 is not a string"),
        ('\n\nimage = ""', "line 3: image: '' is not the name of an image"),
        ('colour = "blue"', "line 1: colour: there is no such field; the fields are name, provider"),
        ('setup = "make"', "line 1: setup: 'make' is not a list"),
        ('setup = ["make", ""]', "line 1: setup[2]: '' is not a command"),
        ('setup = ["a\\u0000b"]', "line 1: setup[1]: it contains a zero byte"),
        ('[limits]\ncpu = 1\nmemory = "4 apples"', "line 3: limits.memory: '4 apples' is not a size: write it as 512M"),
        ('[limits]\nmemory = "1M"', "line 2: limits.memory: '1M' is less than 16M"),
        ("[limits]\ncpu = nan", "line 2: limits.cpu: nan is not a number of cores"),
        ("[limits]\ncpu = true", "line 2: limits.cpu: True is not a number of cores"),
        ('[limits]\ntimeout = "9d"', "line 2: limits.timeout: '9d' is not between 1s and 3d"),
        ("[limits]\nspeed = 3", "line 2: limits.speed: there is no such field; the fields are cpu, memory"),
        ("limits = 3", "line 1: limits: 3 is not a table: write [limits]"),
        ('egress = ["*"]', "line 1: egress: '*' is not a network rule; write a list of hosts"),
        ('egress = "everything"', "line 1: egress: 'everything' is not a list of hosts"),
        ('agent = "Claude Code"', "line 1: agent: 'Claude Code' is not the name of an agent"),
        ('models = ["a,b"]', "line 1: models[1]: 'a,b' is not a model"),
        ('secrets = ["A B"]', "line 1: secrets[1]: 'A B' is not the name of a secret"),
        ('secrets = ["A"]\noptional_secrets = ["A"]', "line 2: optional_secrets: A is listed twice"),
        ('setup = ["x"]\ninputs = ["../etc/passwd"]', "line 2: inputs[1]: '../etc/passwd' is not a path in the work"),
        ('setup = ["x"]\ninputs = ["/etc/passwd"]', "line 2: inputs[1]: '/etc/passwd' is not a path in the work"),
        ('inputs = ["a"]', "line 1: inputs: inputs are files that setup commands read, and there is no setup"),
        ('checkpoints = "every kept=9"', "line 1: checkpoints: invalid setting 'kept=9' in a checkpoint policy"),
        ('checkpoints = "sometimes"', "line 1: checkpoints: invalid checkpoint policy 'sometimes'"),
        ("checkpoints = true", "line 1: checkpoints: True is no policy"),
        ("[budget]\ncost = -1", "line 2: budget.cost: -1 is not an amount of dollars"),
        ("[budget]\nday = 1", "line 2: budget.day: there is no such field; the fields are cost, tokens"),
        ('mounts = ["/"]', "line 1: mounts: there is no such field"),
        ("[env]\nLD_PRELOAD = 'x'", "line 1: env: there is no such field"),
        (
            'recipe = "image.toml"',
            "line 1: recipe: there is no such field; build the image first (holdfast image build",
        ),
        ('repositories = ["../other"]', "line 1: repositories[1]: '../other' is not the URL of a repository"),
        ('repositories = ["/home/me/private"]', "line 1: repositories[1]: '/home/me/private' is not the URL"),
        ('repositories = ["file:///home/me/private"]', "is on the machine of whoever runs it: use https or ssh"),
        ('repositories = ["ext::sh -c evil"]', "names a program for git to start, and is refused"),
        ('repositories = ["http://a.example/b"]', "http:// is not allowed for repositories"),
        ('repositories = ["ssh://-oProxyCommand=evil/x"]', "has a host that programs read differently"),
        ('repositories = ["https://a.example/b@--upload-pack=evil"]', "is not a branch, tag or commit"),
        ('repositories = [{ url = "https://a.example/b", path = "../b" }]', "is not a path in the workspace"),
        ('repositories = [{ url = "https://a.example/b", path = "/etc" }]', "is not a path in the workspace"),
        ('repositories = [{ url = "https://a.example/b", path = "x/.GIT/hooks" }]', "belongs to git"),
        ('repositories = [{ url = "https://a.example/b", path = "." }]', "is not a path in the workspace"),
        ('repositories = [{ url = "https://a.example/.." }]', "is not a path in the workspace"),
        ('repositories = [{ url = "https://a.example/b@x", ref = "y" }]', "has two refs"),
        (
            'repositories = [{ url = "https://a.example/b", to = "y" }]',
            "there is no such field: to; the fields are url",
        ),
        ('repositories = ["https://a.example/b", "https://c.example/b"]', "the folders b and b are not apart"),
        ('\n[services]\nDB = "x"', "line 3: services.DB: 'DB' is not the name of a service"),
        ("[services.db]\nready = 1", "line 1: services.db: {'ready': 1} is not a service"),
        ('[services.db]\ncommand = "x"\nready = 0', "line 3: services.db.ready: 0 is neither a port nor a command"),
        ('[services.db]\ncommand = "x"\ntimeout = "1h"', "line 3: services.db.timeout: '1h' is more than 10m"),
        ('[services.db]\ncommand = "x"\nenvironment = { "A=B" = "x" }', "line 3: services.db.environment:"),
        ('[services.db]\ncommand = "x"\nuser = "root"', "line 3: services.db.user: there is no such field"),
    ],
)
def test_an_error_names_its_line_its_field_the_value_and_what_is_allowed(text: str, told: str) -> None:
    with pytest.raises(InvalidEnvironment) as caught:
        parse_environment(text)
    assert told in caught.value.message
    assert caught.value.status == 422


def test_all_errors_are_reported_at_once_in_the_order_of_their_lines() -> None:
    with pytest.raises(InvalidEnvironment) as caught:
        parse_environment('agent = 3\nimage = 4\n[limits]\nmemory = "x"\ncpu = "y"\n')
    assert re.findall(r"line (\d)", caught.value.message) == ["1", "2", "4", "5"]


def test_invalid_toml_is_reported_with_its_line() -> None:
    with pytest.raises(InvalidEnvironment, match="line 2"):
        parse_environment("a = 1\nb = = 2\n")


def test_a_text_beyond_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InvalidEnvironment, match="more than 16384"):
        parse_environment("#" * (MAX_TEXT + 1))


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidEnvironment):
        parse_environment(text)


VALUES = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.floats(), st.text(max_size=10)), lambda each: st.lists(each, max_size=3)
)


def toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(each):08x}" for each in value if not 0xD800 <= ord(each) < 0xE000) + '"'
    return str(value)


@given(st.sampled_from(FIELDS), VALUES)
def test_any_value_of_a_field_is_read_or_refused_by_name(field: str, value: object) -> None:
    told = field
    try:
        parse_environment(f"{field} = {toml(value)}")
    except InvalidEnvironment as error:
        told = error.message
    assert field in told or "TOML" in told


def test_the_lines_of_a_text_are_looked_at_once_however_many_errors_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 16 KB with as many errors as fit took seconds, in which the server answered nobody."""
    looked = []

    def count(text: str) -> dict[tuple[str | int, ...], int]:
        looked.append(text)
        return lines_of(text)

    monkeypatch.setattr(parsing, "lines_of", count)
    text = "".join(f"[a{number}]\n" for number in range(2000))
    with pytest.raises(InvalidEnvironment, match=r"line 1: a0: there is no such field.*line 20: a19: "):
        parse_environment(text)
    assert looked == [text]


def test_the_line_of_a_field_is_found_in_the_right_table() -> None:
    assert line_of(lines_of(WHOLE), ("limits", "memory")) == 17
    assert line_of(lines_of(WHOLE), ("limits", "missing")) == 15
    assert line_of(lines_of(WHOLE), ("services", "db", "ready")) == 31
    assert line_of(lines_of(WHOLE), ("nothing",)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "budget = " + "9" * 5000,
        "budget = 0x" + "f" * 16_000,
        f"limits = {{ cpu = {'9' * 5000} }}",
        "a = " + "[" * 16_000,
        "a = " + "{a=" * 5_000,
        "a" + ".a" * 8_000 + " = 1",
        "[" + "a." * 8_000 + "b]",
        "".join(f"[a{number}]\n" for number in range(2_000)),
    ],
    ids=["digits", "hex", "inside", "arrays", "tables", "name", "heading", "errors"],
)
def test_a_hostile_text_is_refused_soon_whatever_it_makes_of_toml(text: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidEnvironment):
        parse_environment(text)
    assert time.process_time() - began < 0.5
