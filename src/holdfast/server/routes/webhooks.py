"""REST: webhooks, which tell other programs what happens on threads."""

from __future__ import annotations

from fastapi import APIRouter

from holdfast.api.webhooks import NewWebhook, Webhook, WebhookDelivery, WebhookId, WebhookList, WebhookSecret
from holdfast.server.routes.services import THREAD_ERRORS, Administrator, Use

router = APIRouter(prefix="/v1", responses=THREAD_ERRORS, tags=["webhooks"])


@router.get("/webhooks")
async def list_webhooks(services: Use, _: Administrator) -> WebhookList:
    """List the webhooks, each with its latest deliveries."""
    return WebhookList(webhooks=tuple(services.webhooks.list()))


@router.post("/webhooks", status_code=201)
async def add_webhook(new: NewWebhook, services: Use, _: Administrator) -> WebhookSecret:
    """Add a webhook. It gets what happens from now on. The secret of its signatures is returned only this once."""
    return await services.webhooks.add(new)


@router.get("/webhooks/{id}")
async def get_webhook(id: WebhookId, services: Use, _: Administrator) -> Webhook:
    """Get a webhook with its latest deliveries."""
    return services.webhooks.get(id)


@router.post("/webhooks/{id}/test")
async def send_test_event(id: WebhookId, services: Use, _: Administrator) -> WebhookDelivery:
    """Send an event of the type `webhook.test` once, and return what came of it."""
    return await services.webhooks.test(id)


@router.post("/webhooks/{id}/rotate")
async def rotate_webhook_secret(id: WebhookId, services: Use, _: Administrator) -> WebhookSecret:
    """Give a webhook a new secret. For a day, requests are signed with both."""
    return await services.webhooks.rotate(id)


@router.delete("/webhooks/{id}", status_code=204)
async def remove_webhook(id: WebhookId, services: Use, _: Administrator) -> None:
    """Remove a webhook. What was not delivered is not sent."""
    await services.webhooks.remove(id)
