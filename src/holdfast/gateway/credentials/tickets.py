"""Which tickets to tunnels were used. A ticket is a token in a URL of an origin whose pages are not ours, so it counts
only once."""

from __future__ import annotations

from typing import Final

_REMEMBERED: Final = 4096


class UsedTickets:
    """Remembers used tickets until they expire.

    Among too many, it forgets the oldest, and from then on refuses all tickets that are as old as that one. So no
    ticket is ever taken twice.
    """

    def __init__(self, *, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._used: dict[str, int] = {}
        """By digest, with when they expire, in seconds."""
        self._forgotten = 0
        """Tickets that expire then or earlier are refused."""

    def is_used(self, digest: str, expires: int) -> bool:
        return digest in self._used or expires <= self._forgotten

    def use(self, digest: str, expires: int, now: float) -> bool:
        """Returns whether this is the first use of a ticket that is valid. `now` is in seconds."""
        if self.is_used(digest, expires):
            return False
        self._used[digest] = expires
        for each in [each for each, until in self._used.items() if until <= now]:
            del self._used[each]
        while len(self._used) > self._remembered:
            oldest = min(self._used, key=self._used.__getitem__)
            self._forgotten = max(self._forgotten, self._used.pop(oldest))
        return True
