"""What a command failed for want of."""

from __future__ import annotations

import pytest

from holdfast.cli.run.missing import find_missing


@pytest.mark.parametrize(
    ("output", "missing"),
    [
        ("/usr/bin/python3: No module named pytest", "pytest"),
        ("Traceback …\nModuleNotFoundError: No module named 'requests'", "requests"),
        ("bash: line 1: pytest: command not found\n\nCommand exited with code 127", "pytest"),
        ("/bin/sh: 1: cargo: not found", "cargo"),
        ("sh: npm: not found", "npm"),
        ("WARNING: Retrying … Temporary failure in name resolution\nERROR: No matching distribution", "the network"),
        ("fatal: unable to access 'https://github.com/': Could not resolve host: github.com", "the network"),
        ("npm error getaddrinfo EAI_AGAIN registry.example", "the network"),
        ("CONNECT example.com:443 is blocked by the network policy of this box (b-1): no rule", "the network"),
        ("1 failed, 3 passed", ""),
        ("the user was not found", ""),
        ("", ""),
    ],
)
def test_it_is_found_in_what_was_printed(output: str, missing: str) -> None:
    assert find_missing(output) == missing


def test_a_huge_output_is_read_at_its_end_only() -> None:
    assert find_missing("bash: pytest: command not found\n" + "x" * 1_000_000) == ""
    assert find_missing("x" * 1_000_000 + "\nbash: pytest: command not found") == "pytest"
