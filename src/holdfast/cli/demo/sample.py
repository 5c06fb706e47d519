"""The demo's sample program, which has a failing test, and the script that its model follows."""

from __future__ import annotations

from typing import Any, Final

PROMPT: Final = "The tests fail. Find out why, and repair it."

_WRONG: Final = """\
    reduced = discount(total, percent)
    return round(discount(reduced, percent), 2)
"""
_RIGHT: Final = """\
    return round(discount(total, percent), 2)
"""

FILES: Final = {
    "README.md": "# Prices\n\nWhat an order costs. `python3 -m unittest` runs the tests.\n",
    "price.py": f'''\
"""Prices of orders."""


def discount(amount: float, percent: float) -> float:
    """An amount less so many percent."""
    return amount * (1 - percent / 100)


def price(items: list[float], percent: float = 0) -> float:
    """What a customer pays: the sum of the items, less the discount."""
    total = sum(items)
{_WRONG}''',
    "test_price.py": """\
import unittest

from price import discount, price


class TestPrice(unittest.TestCase):
    def test_nothing_costs_nothing(self) -> None:
        self.assertEqual(price([]), 0)

    def test_items_add_up(self) -> None:
        self.assertEqual(price([1.5, 2.5]), 4)

    def test_a_discount_is_a_share_of_the_amount(self) -> None:
        self.assertEqual(discount(200, 10), 180)

    def test_an_order_gets_its_discount_once(self) -> None:
        self.assertEqual(price([40, 60], 10), 90)


if __name__ == "__main__":
    unittest.main()
""",
}

_TESTS: Final = "python3 -m unittest 2>&1"
_PACE: Final = {"delta_delay": 0.03}

SCRIPT: Final[list[dict[str, Any]]] = [
    {"text": "I'll run the tests first.", "bash": _TESTS, **_PACE},
    {
        "text": "The failure is in price.py: the discount is applied twice.",
        "edit": {"path": "price.py", "old": _WRONG, "new": _RIGHT},
        **_PACE,
    },
    # The box is killed here, in the middle of a word.
    {
        "text": "That should do. Now the tests once more, to be sure.",
        "gate": {"name": "never", "at": 4},
        "delta_delay": 0.1,
    },
    {"bash": _TESTS, **_PACE},
    {"text": "Fixed: the discount is now applied once, and all four tests pass.", **_PACE},
]
"""An answer for each request of the agent, in order."""
