"""Tickets to tunnels: each counts once, however many there are."""

from __future__ import annotations

from holdfast.gateway.credentials.tickets import UsedTickets


def test_a_ticket_counts_once() -> None:
    used = UsedTickets()
    assert used.use("a", 60, 0)
    assert not used.use("a", 60, 1)
    assert used.use("b", 60, 1)


def test_a_flood_of_tickets_lets_none_be_used_again() -> None:
    used = UsedTickets(remembered=8)
    first = [used.use(f"{number}", 60 + number, 0) for number in range(20)]
    assert all(first)
    assert not any(used.use(f"{number}", 60 + number, 0) for number in range(20))
    assert used.use("new", 90, 0)


def test_what_has_expired_is_forgotten_and_refuses_nobody() -> None:
    used = UsedTickets(remembered=2)
    for number in range(5):
        assert used.use(f"{number}", 60 * number + 60, 60 * number)
    assert used.use("other", 60 * 5, 60 * 4)
