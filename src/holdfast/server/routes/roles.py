"""Which role each route needs at least. A route that is not here is for owners only, and fails a test.

Viewers read what a tenant has and what its agents did. They see no content of boxes, which may hold what was exposed
to them, and get no credential. Members work. Owners also decide about money, credentials and members.
"""

from __future__ import annotations

from typing import Final

from holdfast.api.access.tenants import TenantRole

SOCKET: Final = "WEBSOCKET"
"""Takes the place of the method."""

_VIEWER: Final = """
GET /v1/caller
GET /v1/agents  GET /v1/agents/{name:path}
GET /v1/threads  GET /v1/threads/{id}  GET /v1/threads/{id}/entries  GET /v1/threads/{id}/turns
GET /v1/threads/{id}/tasks  GET /v1/threads/{id}/tree  GET /v1/tasks/{id}  GET /v1/tasks/{id}/result
GET /v1/runs  GET /v1/runs/{id}  GET /v1/runs/{id}/diagnose
GET /v1/runs/{id}/diff  GET /v1/runs/{id}/patch  GET /v1/runs/{id}/changed-files
GET /v1/sessions  GET /v1/sessions/{id}  GET /v1/sessions/{id}/prompts
GET /v1/sessions/{id}/models  GET /v1/sessions/{id}/questions
GET /v1/boxes  GET /v1/boxes/metrics  GET /v1/boxes/{id}  GET /v1/boxes/{id}/metrics  GET /v1/boxes/{id}/egress
GET /v1/interpreters  GET /v1/interpreters/{id}
GET /v1/snapshots  GET /v1/volumes  GET /v1/images  GET /v1/images/{name:path}
GET /v1/egress/default  GET /v1/egress/policies  GET /v1/egress/policies/{environment}
GET /v1/environments  GET /v1/environments/{name}  GET /v1/environments/{name}/versions
GET /v1/models  GET /v1/models/{name}  GET /v1/prices  GET /v1/costs  GET /v1/budgets
GET /v1/providers  GET /v1/providers/{name}
POST /v1/login/links
GET /v1/members  GET /v1/inbox  GET /v1/inbox/waiting  GET /v1/session-tools
"""

_MEMBER: Final = """
POST /v1/threads  PATCH /v1/threads/{id}  DELETE /v1/threads/{id}  POST /v1/threads/{id}/chat
POST /v1/threads/{id}/shares  GET /v1/threads/{id}/shares  DELETE /v1/threads/{id}/shares/{share}
POST /v1/threads/{id}/tokens  POST /v1/threads/{id}/links  POST /v1/threads/{id}/tasks
POST /v1/threads/{id}/forks  POST /v1/threads/{id}/rewind  POST /v1/threads/{id}/compare  POST /v1/tasks/{id}/cancel
POST /v1/workspaces  POST /v1/runs  POST /v1/imports  POST /v1/runs/check
POST /v1/runs/{id}/cancel  POST /v1/runs/{id}/steer  POST /v1/runs/{id}/resume
POST /v1/sessions  POST /v1/sessions/{id}/prompts  POST /v1/sessions/{id}/hibernate  POST /v1/sessions/{id}/restore
POST /v1/sessions/{id}/terminate  DELETE /v1/sessions/{id}/workspace  POST /v1/sessions/{id}/links
GET /v1/sessions/{id}/diagnosis
GET /v1/sessions/{id}/reviews/{prompt}  POST /v1/sessions/{id}/abort  POST /v1/sessions/{id}/revert
GET /v1/sessions/{id}/agent  PUT /v1/sessions/{id}/agent
POST /v1/sessions/{id}/commands  POST /v1/sessions/{id}/answers
GET /v1/sessions/{id}/members  PUT /v1/sessions/{id}/members  DELETE /v1/sessions/{id}/members
POST /v1/sessions/{id}/revoke  GET /v1/sessions/{id}/tunnels  POST /v1/sessions/{id}/tunnels
DELETE /v1/sessions/{id}/tunnels/{name}  POST /v1/sessions/{id}/tools/{name}
POST /v1/sessions/{id}/reviews
GET /v1/webhooks  GET /v1/webhooks/{id}  POST /v1/webhooks/{id}/test
GET /v1/workflow-executions/{id}  POST /v1/workflow-executions/{id}/approve
POST /v1/workflow-executions/{id}/cancel
DELETE /v1/inbox/{id}  POST /v1/inbox/{id}/read  POST /v1/inbox/{id}/reply
POST /v1/boxes  GET /v1/boxes/diagnose  POST /v1/boxes/prune  DELETE /v1/boxes/{id}
POST /v1/boxes/{id}/stop  POST /v1/boxes/{id}/start  POST /v1/boxes/{id}/fork  POST /v1/boxes/{id}/move
GET /v1/boxes/{id}/ping  GET /v1/boxes/{id}/diagnose  GET /v1/boxes/{id}/python
GET /v1/boxes/{id}/preview  GET /v1/boxes/{id}/preview-address  POST /v1/boxes/{id}/exec
GET /v1/boxes/{id}/files  PUT /v1/boxes/{id}/files  DELETE /v1/boxes/{id}/files  GET /v1/boxes/{id}/files/stat
GET /v1/boxes/{id}/files/list  GET /v1/boxes/{id}/files/find  GET /v1/boxes/{id}/files/search
POST /v1/boxes/{id}/files/mkdir  POST /v1/boxes/{id}/files/move  POST /v1/boxes/{id}/files/chmod
POST /v1/boxes/{id}/files/replace  GET /v1/boxes/{id}/tree  PUT /v1/boxes/{id}/tree
POST /v1/boxes/{id}/processes  GET /v1/boxes/{id}/processes  GET /v1/boxes/{id}/processes/{process}
GET /v1/boxes/{id}/processes/{process}/output  POST /v1/boxes/{id}/processes/{process}/signal
POST /v1/boxes/{id}/processes/{process}/resize  POST /v1/boxes/{id}/processes/{process}/stdin
GET /v1/boxes/{id}/processes/{process}/wait  POST /v1/boxes/{id}/snapshots  PUT /v1/boxes/{id}/network
POST /v1/snapshots/import  DELETE /v1/snapshots/{id}  POST /v1/snapshots/{id}/restore  GET /v1/snapshots/{id}/export
POST /v1/volumes  DELETE /v1/volumes/{name}
POST /v1/images  POST /v1/images/import  POST /v1/images/pull  DELETE /v1/images/{name:path}
POST /v1/environments/check  POST /v1/environments/build  POST /v1/environments/consent
POST /v1/environments/allow  POST /v1/environments/disallow
PUT /v1/environments/{name}  DELETE /v1/environments/{name}
POST /v1/interpreters  GET /v1/interpreters/{id}/preview  DELETE /v1/interpreters/{id}
POST /v1/interpreters/{id}/execute  POST /v1/interpreters/{id}/execute/stream  POST /v1/interpreters/{id}/interrupt
POST /v1/interpreters/{id}/reset  POST /v1/interpreters/{id}/workspace
GET /v1/interpreters/{id}/state  PUT /v1/interpreters/{id}/state
POST /v1/interpreters/{id}/sessions/{session}/save  POST /v1/interpreters/{id}/sessions/{session}/load
POST /v1/completions  POST /v1/runtime/tests/box  POST /v1/runtime/tests/lm
GET /v1/secrets  GET /v1/secrets/{name}
WEBSOCKET /v1/boxes/{id}/exec  WEBSOCKET /v1/boxes/{id}/channel
WEBSOCKET /v1/boxes/{id}/processes/{process}/attach  WEBSOCKET /v1/boxes/{id}/connect/{port}
WEBSOCKET /v1/completions/socket
"""

_OWNER: Final = """
GET /v1/keys  POST /v1/keys  DELETE /v1/keys/{id}
PUT /v1/members/{name}  DELETE /v1/members/{name}
POST /v1/webhooks  POST /v1/webhooks/{id}/rotate  DELETE /v1/webhooks/{id}
GET /v1/audit  GET /v1/logins  DELETE /v1/logins/{id}
PUT /v1/models/{name}  DELETE /v1/models/{name}  POST /v1/models/{name}/test
PUT /v1/budgets/day  PUT /v1/budgets/{scope}/{id}  DELETE /v1/budgets/day  DELETE /v1/budgets/{scope}/{id}
PUT /v1/prices/{name}/{model:path}  DELETE /v1/prices/{name}/{model:path}
PUT /v1/egress/policies/{environment}  DELETE /v1/egress/policies/{environment}
PUT /v1/providers/{name}  DELETE /v1/providers/{name}  POST /v1/providers/{name}/test  POST /v1/providers/{name}/setup
PUT /v1/secrets/{name}  POST /v1/secrets/{name}/rotate  DELETE /v1/secrets/{name}  GET /v1/secrets/{name}/events
GET /v1/tenants  POST /v1/tenants  DELETE /v1/tenants/{name}  POST /v1/tenants/{name}/keys
GET /v1/tenants/{name}/quotas  PUT /v1/tenants/{name}/quotas
"""

PUBLIC: Final = frozenset(
    {
        ("GET", "/"),
        ("GET", "/new"),
        ("GET", "/inbox"),
        ("GET", "/boxes"),
        ("GET", "/settings"),
        ("GET", "/settings/{part}"),
        ("GET", "/compare/{a}/{b}"),
        ("GET", "/t/{id}"),
        ("GET", "/t/{id}/{view}"),
        ("GET", "/page/{name}"),
        ("GET", "/v1/login/methods"),
        ("GET", "/login"),
        ("GET", "/login/oidc"),
        ("GET", "/health"),
        ("GET", "/v1/openapi.json"),
    }
)
"""Routes that need no credential: files that are the same for everybody."""

BY_TOKEN: Final = frozenset(
    {
        ("POST", "/v1/tokens/renew"),
        ("POST", "/v1/hooks/{trigger}"),
        ("POST", "/v1/channel-events/{name}/{kind}"),
        ("POST", "/v1/login"),
        ("DELETE", "/v1/login"),
        ("GET", "/login/oidc/callback"),
        ("GET", "/s/{secret}"),
    }
)
"""Routes that check the credential, or the signature, themselves."""

OPERATOR: Final = frozenset({("GET", "/metrics"), ("POST", "/v1/providers/{name}/setup")})
"""Routes about the machine, for owners of the default tenant only. So are all below `/v1/tenants`."""


def _parse(text: str) -> frozenset[tuple[str, str]]:
    words = text.split()
    return frozenset(zip(words[::2], words[1::2], strict=True))


LEAST: Final = {
    **dict.fromkeys(_parse(_VIEWER), TenantRole.VIEWER),
    **dict.fromkeys(_parse(_MEMBER), TenantRole.MEMBER),
    **dict.fromkeys(_parse(_OWNER), TenantRole.OWNER),
}


def least_role(method: str, path: str) -> TenantRole:
    """Returns the role that a route needs. `path` is the pattern of the route."""
    return LEAST.get((method, path), TenantRole.OWNER)
