"""A thread as a page that stands alone, also if everything on it is hostile."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from holdfast.api.model.budgets import Cost
from holdfast.api.thread.entries import Entry
from holdfast.exports.page import Exported, render

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></details></style><script>alert(1)</script>",
    "javascript:alert(1)",
    "<!--",
    "]]><svg onload=alert(1)>",
    "&lt;script&gt;",
    "\x1b]0;title\x07\x1b[2J\x00",
    "a\u202eb\u2066c\u200b",
    "<a href='https://evil.example'>click</a>",
    "\ud800",
    "[click](javascript:alert(1)) [and](https://evil.example) <https://evil.example> ![](https://evil.example/x.png)",
    "[a]: javascript:alert(1)\n\n[a] | <b>\n\n| <i> |\n|---|\n| </td><script> |",
    "```html\n</pre><script>alert(1)</script>\n```\n\n    <script>\n\n# <script>\n\n> <script>",
]
PATCH = """diff --git a/price.py b/price.py
index 1..2 100644
--- a/price.py
+++ b/price.py
@@ -1,2 +1,2 @@
-old
+new
 same
"""


class Seen(HTMLParser):
    ALLOWED = frozenset(
        [
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "header",
            "main",
            "section",
            "div",
            "dl",
            "dt",
            "dd",
            "h1",
            "h2",
            "p",
            "b",
            "code",
            "pre",
            "span",
            "details",
            "summary",
            # What Markdown may become.
            *("h3", "h4", "h5", "h6", "hr", "br", "ul", "ol", "li", "blockquote", "strong", "em", "s"),
            *("table", "thead", "tbody", "tr", "th", "td"),
        ]
    )

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert tag in self.ALLOWED, tag
        for name, _ in attrs:
            assert not name.startswith("on"), name
            assert name not in ("href", "src", "style", "action"), name

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def seen(page: str) -> Seen:
    parser = Seen()
    parser.feed(page)
    parser.close()
    return parser


def entries(text: str) -> list[Entry]:
    payloads: list[dict[str, Any]] = [
        {"type": "chat", "text": text},
        {"type": "signal.run.started", "run": text, "agent": text, "model": text, "prompts": [text]},
        {"type": "pi.user", "text": text},
        {"type": "pi.assistant", "text": text, "thinking": text},
        {"type": "pi.tool", "name": text, "arguments": {"command": text, text: [text]}, "result": text, "status": text},
        {"type": "pi.tool", "name": 7, "arguments": text, "result": {"a": text}, "ms": "x"},
        {"type": "pi.compaction", "summary": text},
        {"type": "pi.notice", "level": "error", "text": text},
        {"type": "opencode.question", "question": text, "kind": text, "text": text, "options": [text, {text: 1}]},
        {"type": "opencode.answer", "question": text, "answer": [text]},
        {"type": "signal.session.error", "error": {"message": text}},
        {"type": f"signal.{text}"},
        {"type": "opencode.question", "text": text, "options": [text, 1]},
        {"type": "opencode.answer", "answer": text},
        {"type": "signal.session.terminated", "why": text},
        {"type": "signal.session.error", "error": {"message": text}},
        {"type": "signal.run.box", "box": text, "how": [text]},
        {"type": "signal.run.finished", "status": text, "error": {"message": text}, "usage": {text: 1, "cost": "x"}},
        {"type": "pi.delta", "text": text},
    ]  # fmt: skip
    return [Entry(f"e{number}", 1_700_000_000_000 + number, payload) for number, payload in enumerate(payloads)]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_on_a_thread_becomes_markup(text: str) -> None:
    page = render(
        Exported(text, text, entries(text), patch=f"diff --git a/{text} b/{text}\n@@ -1 +1 @@\n-{text}\n+{text}\n")
    )
    found = seen(page)
    assert "script" not in found.tags
    page.encode()  # also half of a surrogate pair
    for character in "\x1b\x00\x07\u202e\u2066\u200b":
        assert character not in page


def test_a_page_loads_nothing_and_says_so() -> None:
    page = render(Exported("t-1", "Title", entries("hello"), patch=PATCH))
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page


def test_a_page_has_timeline_changes_and_cost() -> None:
    told = [
        Entry("1", 1_700_000_000_000, {"type": "chat", "text": "Fix it."}),
        Entry("2", 1_700_000_000_100, {"type": "signal.run.started", "run": "r-1", "agent": "pi", "prompts": ["1"]}),
        Entry("3", 1_700_000_000_200, {"type": "pi.user", "text": "Fix it."}),
        Entry("4", 1_700_000_001_000, {"type": "pi.assistant", "text": "Done."}),
        Entry("5", 1_700_000_065_000, {"type": "signal.run.finished", "status": "completed", "ms": 65_000,
                                       "usage": {"input": 1000, "output": 234, "cost": 0.5}}),
    ]  # fmt: skip
    text = " ".join(seen(render(Exported("t-1", "A title", told, patch=PATCH))).text)
    assert text.count("Fix it.") == 1  # the agent repeats its prompt
    for part in ("A title", "Done.", "completed", "1,234", "$0.50", "1 min 05 s", "price.py", "+1", "−1", "new"):
        assert part in text, part


@pytest.mark.parametrize(("patch", "shown"), [("", True), (None, False)], ids=["nothing", "unknown"])
def test_a_page_of_a_thread_that_changed_no_file_says_so(patch: str | None, *, shown: bool) -> None:
    text = " ".join(seen(render(Exported("t-1", "Title", entries("hello"), patch=patch))).text)
    assert ("No file was changed." in text) is shown


@pytest.mark.parametrize(
    ("counted", "reported", "shown"),
    [
        (Cost(calls=2, input=9, cost=0.5), 0.0, "$0.50"),
        (Cost(calls=2, input=9, cost=0.5, unpriced=1), 7.0, "at least $0.50, 1 call without a price"),
        (Cost(calls=2, input=9, unpriced=2), 0.0, "unknown, 2 calls without a price"),
        (Cost(calls=2, input=9), 0.0, "$0.00"),
        (None, 0.25, "$0.25"),
        (None, 0.0, ""),
    ],
)
def test_a_cost_that_is_not_known_is_not_shown_as_nothing(counted: Cost | None, reported: float, shown: str) -> None:
    """What the server counted is shown. An agent that does not know a price says 0."""
    end = {"type": "signal.run.finished", "run": "r-1", "status": "completed", "usage": {"input": 9, "cost": reported}}
    costs = {} if counted is None else {"r-1": counted}
    page = render(Exported("t-1", "T", [Entry("1", 1, end)], cost=counted, costs=costs))
    text = " ".join(seen(page).text)
    if shown:
        assert text.count(shown) == 2
    else:
        assert "cost" not in text, "nothing is said, rather than that it is unknown"
    assert ("$0.00" in text) == (shown == "$0.00")


def test_a_huge_thread_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.exports.page.MOST_ENTRIES", 3)
    monkeypatch.setattr("holdfast.exports.page._MOST_TEXT", 10)
    page = render(Exported("t-1", "T", entries("x" * 1000)))
    assert "Only the first 3 entries are shown." in page
    assert "990 more characters" in page


def one(**payload: Any) -> str:
    return render(Exported("t-1", "T", [Entry("1", 1, payload)]))


def test_what_an_agent_says_is_markdown() -> None:
    page = one(
        type="pi.assistant", text="# Done\n\nIt **works** `now`:\n\n1. one\n2. two\n\n| a |\n|---|\n| b |\n\n~~x~~"
    )
    for part in (
        "<h3>Done</h3>",
        "<strong>works</strong> <code>now</code>",
        "<ol><li>one</li><li>two</li></ol>",
        "<th>a</th>",
        "<td>b</td>",
        "<s>x</s>",
    ):
        assert part in page, part
    assert "**works**" in one(type="chat", text="It **works**"), "what people write is shown as it is"


def test_a_link_shows_where_it_leads_and_leads_nowhere() -> None:
    page = one(type="pi.assistant", text="See [the docs](https://evil.example/a?b&c), <https://plain.example>.")
    assert "the docs (<code>https://evil.example/a?b&amp;c</code>), https://plain.example." in page
    assert "<a" not in page
    image = one(type="pi.assistant", text="![a cat](https://evil.example/cat.png)")
    assert "a cat (<code>https://evil.example/cat.png</code>)" in image
    assert "<img" not in image


def test_questions_answers_and_sleep_are_told() -> None:
    question = one(
        type="opencode.question", question="q-1", kind="question", text="Which one?", options=["red", "blue"]
    )
    assert "the agent asks" in question
    assert "Which one?" in question
    assert "red · blue" in question
    permission = one(type="opencode.question", question="q-2", kind="permission", text="rm -r build")
    assert "the agent asks for permission" in permission
    assert "blue" in one(type="opencode.answer", question="q-1", answer="blue")
    assert "nobody answered in time" in one(type="opencode.answer", question="q-1", answer="__expired__")
    assert "asleep" in one(type="signal.session.hibernated", version=3)
    assert "awake" in one(type="signal.session.running", version=5, **{"from": "restoring"})
    assert "the session could not be started: no room" in one(
        type="signal.session.error", error={"code": "x", "message": "no room"}
    )


def test_a_page_without_cost_has_none_that_an_agent_reports_either() -> None:
    end = {"type": "signal.run.finished", "status": "completed", "usage": {"input": 77, "cost": 0.5}}
    counted = Cost(calls=1, input=77, cost=0.5)
    shown = Exported("t-1", "T", [Entry("1", 1, end)], cost=counted, costs={"r-1": counted}, shows_cost=False)
    text = " ".join(seen(render(shown)).text)
    for part in ("$", "cost", "tokens", "77"):
        assert part not in text, part


def test_the_page_as_a_whole_has_a_limit() -> None:
    result = "x" * 99_000
    told = [Entry(str(number), number, {"type": "pi.tool", "name": "sh", "result": result}) for number in range(1000)]
    page = render(Exported("t-1", "T", told))
    assert len(page) < 17_000_000
    assert "entries are shown." in page
    assert "Only the first 1 entries are shown." in render(Exported("t-1", "T", told[:1], cut=True))


def test_markdown_has_a_limit_as_a_whole() -> None:
    """Some texts take long to parse. Anybody with a link to a shared page makes the server parse them."""
    told = [Entry(str(number), number, {"type": "pi.assistant", "text": "**a** " * 1600}) for number in range(100)]
    page = render(Exported("t-1", "T", told))
    assert page.count("<strong>") == 52 * 1600
    assert page.count("**a**") == 48 * 1600
    assert "<strong>" not in one(type="pi.assistant", text="**a** " * 1700)


SIGNALS: list[tuple[dict[str, Any], str | None]] = [
    ({"type": "signal.thread.rewound", "turn": 2}, "rewound to the end of turn 2"),
    ({"type": "signal.thread.rewound", "turn": 3, "undoes": True}, "rewind undone"),
    ({"type": "signal.thread.forked", "from": "t-0", "turn": 1}, "forked from thread t-0 after turn 1"),
    ({"type": "signal.thread.checkpoint", "turn": 1}, "files saved after turn 1"),
    ({"type": "signal.thread.child_started", "agent": "pi", "title": "Look", "child": "t-9"}, "delegated to pi: Look"),
    ({"type": "signal.model.failover", "model": "a/x", "to": "b/y", "reason": "rate"}, "too many requests: going on"),
    ({"type": "signal.model.budget", "scope": "run", "state": "reached"}, "the budget of this run is used up"),
    ({"type": "signal.run.cancel_requested"}, "cancelled"),
    ({"type": "signal.session.hibernated", "version": 4, "from": "hibernating"}, "asleep, with its files saved"),
    ({"type": "signal.session.running", "version": 6, "from": "restoring"}, "awake again"),
    ({"type": "signal.session.running", "version": 2, "from": "initializing"}, None),
    ({"type": "signal.session.terminated", "why": "its box is gone"}, "session terminated: its box is gone"),
    ({"type": "signal.session.error", "error": {"message": "no room"}}, "the session could not be started: no room"),
    ({"type": "signal.session.child_terminated", "child": "t-9", "why": ""}, "session t-9, which belongs to this one"),
    ({"type": "signal.session.booted", "ms": 3}, None),
    (
        {"type": "opencode.question", "question": "q", "text": "Which?", "options": ["a", "b"]},
        "asks Which? a · b",
    ),
    (
        {"type": "opencode.question", "kind": "permission", "text": "May it use bash?"},
        "permission May it use bash?",
    ),
    ({"type": "opencode.answer", "question": "q", "answer": "a"}, "answer a"),
    ({"type": "opencode.answer", "question": "q", "answer": "__expired__"}, "nobody answered in time"),
    ({"type": "signal.custom.thing"}, "custom.thing"),
    ({"type": "signal.model.call", "cost": 1}, None),
    ({"type": "signal.run.runner"}, None),
    ({"type": "signal.thread.created", "title": "x"}, None),
]


@pytest.mark.parametrize(("payload", "said"), SIGNALS)
def test_signals_are_told_in_words(payload: dict[str, Any], said: str | None) -> None:
    page = seen(render(Exported("t-1", "A title", [Entry("1", 1, payload)])))
    text = " ".join(page.text)
    name = payload["type"].removeprefix("signal.")
    assert (name in text) is (said == name)
    assert said is None or said in text


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (Cost(calls=2, input=1000, output=234, cost=0.5), "$0.50"),
        (Cost(calls=2, input=1000, output=234, cost=0.001), "$0.0010"),
        (Cost(calls=2, input=1000, output=234, unpriced=2), "unknown, 2 calls without a price"),
        (Cost(calls=3, input=1000, output=234, cost=0.5, unpriced=1), "at least $0.50, 1 call without a price"),
    ],
)
def test_the_cost_is_what_the_server_counted(cost: Cost, said: str) -> None:
    end = {"type": "signal.run.finished", "status": "completed", "usage": {"input": 7, "cost": 9}}
    text = " ".join(seen(render(Exported("t-1", "T", [Entry("1", 1, end)], cost=cost))).text)
    assert said in text
    assert "1,234" in text
    assert "not counted" not in text


@pytest.mark.parametrize(
    "character", ["\u00ad", "\u061c", "\u180e", "\u2028", "\u3164", "\ufe00", "\U000e0041", "\x85"]
)
def test_a_character_that_is_not_seen_is_shown(character: str) -> None:
    page = render(Exported("t-1", "T", [Entry("1", 1, {"type": "chat", "text": f"rm{character} x"})]))
    assert character not in page
    assert f"rm⟨{ord(character):04X}⟩ x" in page
