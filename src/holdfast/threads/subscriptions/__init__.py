"""Subscriptions: wake a subscriber when streams change, through a webhook or a wake stream that workers claim from.

`SubscriptionService` owns them; `SubscriptionRoutes` is their HTTP interface.
"""

from holdfast.threads.subscriptions.routes import SubscriptionRoutes, is_control, needs_grant
from holdfast.threads.subscriptions.schemas import Limits
from holdfast.threads.subscriptions.service import SubscriptionService
from holdfast.threads.subscriptions.signing import verify_signature
from holdfast.threads.subscriptions.store import SubscriptionStore
from holdfast.threads.subscriptions.webhooks import Webhooks

__all__ = [
    "Limits",
    "SubscriptionRoutes",
    "SubscriptionService",
    "SubscriptionStore",
    "Webhooks",
    "is_control",
    "needs_grant",
    "verify_signature",
]
