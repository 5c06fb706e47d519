"""A question about a text that is far too long for a model: dspy.RLM explores it by code, which runs in a box.

    python examples/long_context.py                     with a scripted model: no key, no network
    python examples/long_context.py openai/gpt-5-mini   with a real one, as dspy names them

The text never goes to the model. It is a variable in the box; the model sees what its code prints, and asks a second
model about the few lines that matter.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import dspy
from dspy.utils import DummyLM

from holdfast.interpreter.dspy import Boxes

QUESTION = "How many letters complain about a parcel that came late, and from which city do most of these come?"
CITIES = ("Aarhus", "Bergen", "Cork", "Delft")
LATE = ("it arrived two weeks after the day", "we waited and waited for the parcel", "my parcel came far too late")
OTHER = ("thank you, all is well", "the colour is not as shown", "please send me an invoice", "is there a blue one")


def letters(count: int = 40_000) -> str:
    """About three megabytes of them. One in a thousand is about a late parcel."""
    made = random.Random(7)
    lines = []
    for number in range(count):
        late = number % 1_000 == 500
        city = "Bergen" if late and number % 3_000 else made.choice(CITIES)
        lines.append(f"letter {number} from {city}: {made.choice(LATE if late else OTHER)}, yours {made.random()}")
    return "\n".join(lines)


STEPS = (
    # Look first.
    """\
lines = letters.splitlines()
print(len(letters), len(lines))
print(lines[0])
""",
    # Narrow it down by code, which is free.
    """\
import re
from collections import Counter
about = [re.sub(r", yours .*", "", line.split(": ", 1)[1]) for line in lines]
kinds = Counter(about)
kinds
""",
    # What the kinds mean is a question for a model: once for each, not once for each letter.
    """\
names = list(kinds)
said = llm_query_batched([f"Does this complain about a late parcel? Answer yes or no: {name}" for name in names])
late = {name for name, answer in zip(names, said) if answer.lower().startswith("yes")}
print(late)
""",
    """\
found = [line.split(" from ")[1].split(":")[0] for line, kind in zip(lines, about) if kind in late]
city, _ = Counter(found).most_common(1)[0]
SUBMIT(count=len(found), city=city)
""",
)


def scripted() -> tuple[DummyLM, Callable[[str], list[str]]]:
    """One that writes the steps above, and one that answers yes or no."""
    writer = DummyLM([{"reasoning": "The next step.", "code": f"```python\n{step}```"} for step in STEPS])
    return writer, lambda prompt: ["yes" if any(text in prompt for text in LATE) else "no"]


def main() -> None:
    if len(sys.argv) > 1:
        writer = reader = dspy.LM(sys.argv[1])
    else:
        writer, reader = scripted()
    rlm = dspy.RLM(
        "letters: str, question: str -> count: int, city: str",
        interpreter_factory=Boxes(),
        sub_lm=reader,
        max_iters=10,
    )
    with dspy.context(lm=writer):
        answer = rlm(letters=letters(), question=QUESTION)
    for number, step in enumerate(answer.trajectory, 1):
        print(f"--- step {number}\n{step['code'].rstrip()}\n>>> {step['output'][:300]}\n")
    print(f"{answer.count} letters, most of them from {answer.city}")


if __name__ == "__main__":
    main()
