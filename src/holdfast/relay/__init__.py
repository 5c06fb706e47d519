"""A relay: forwards requests of boxes to the guest API of one server. For boxes that reach no other host."""

from holdfast.relay.relay import Relay, RelayLimits
from holdfast.relay.upstream import Upstream

__all__ = ["Relay", "RelayLimits", "Upstream"]
