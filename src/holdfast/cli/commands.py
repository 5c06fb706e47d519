"""All commands, in the order of the help, and the function of each. Imports no module of a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple


class Group(NamedTuple):
    """A command that has subcommands."""

    help: str
    commands: Mapping[str, Group | str]


COMMANDS: Final[Mapping[str, Group | str]] = {
    "demo": "demo.demo:demo",
    "run": "run.launch:run",
    "runs": "run.list:runs",
    "resume": "run.resume:resume",
    "attach": "run.attach:attach",
    "steer": "run.steer:steer",
    "cancel": "run.cancel:cancel",
    "diff": "run.changes.diff:diff",
    "fork": "run.fork:fork",
    "rewind": "run.rewind:rewind",
    "compare": "run.changes.compare:compare",
    "cost": "model.cost:cost",
    "apply": "run.changes.apply:apply",
    "push": "run.changes.push:push",
    "pr": "run.changes.push:pull_request",
    "export": "thread.export:export",
    "import": "run.session_import:import_",
    "delegate": "run.delegate:delegate",
    "task": Group(
        "Tasks that threads have delegated: look at them, get their results and cancel them.",
        {
            "list": "run.task:list_",
            "show": "run.task:show",
            "result": "run.task:result",
            "cancel": "run.task:cancel",
        },
    ),
    "up": "server.up:up",
    "down": "server.down:down",
    "relay": "server.relay:relay",
    "thread": Group(
        "Threads: create, write, read and follow them.",
        {
            "new": "thread.commands:new",
            "list": "thread.commands:list_",
            "show": "thread.commands:show",
            "tail": "thread.commands:tail",
            "entries": "thread.commands:entries",
            "append": "thread.commands:append",
            "rename": "thread.commands:rename",
            "archive": "thread.commands:archive",
            "pin": "thread.commands:pin",
            "delete": "thread.commands:delete",
            "token": "thread.commands:token",
            "diagnose": "thread.diagnose:diagnose",
            "turns": "thread.turns:turns",
            "trace": "thread.trace:trace",
            "tree": "thread.tree:tree",
            "wait": "thread.tree:wait",
        },
    ),
    "session": Group(
        "Sessions: a box and an agent that work on the prompts you queue, and sleep in between.",
        {
            "new": "sessions.commands:new",
            "list": "sessions.commands:list_",
            "status": "sessions.commands:status",
            "diagnose": "sessions.diagnosis:diagnose",
            "prompt": "sessions.commands:prompt",
            "command": "sessions.agent:command",
            "abort": "sessions.agent:abort",
            "review": "sessions.agent:review",
            "revert": "sessions.agent:revert",
            "diff": "run.changes.diff:diff",
            "configure": "sessions.configure:configure",
            "questions": "sessions.agent:questions",
            "answer": "sessions.agent:answer",
            "models": "sessions.agent:models",
            "open": "sessions.gateway:open_",
            "members": "sessions.gateway:members",
            "revoke": "sessions.gateway:revoke",
            "tunnel": "sessions.gateway:tunnel",
            "tools": "sessions.tools:tools",
            "call": "sessions.tools:call",
            "hibernate": "sessions.commands:hibernate",
            "restore": "sessions.commands:restore",
            "terminate": "sessions.commands:terminate",
            "delete": "sessions.commands:delete",
        },
    ),
    "workflow": Group(
        "Workflows: steps that are carried out one after the other in a session.",
        {
            "sync": "sessions.workflow:sync",
            "list": "sessions.workflow:list_",
            "run": "sessions.workflow:run",
            "show": "sessions.workflow:show",
            "approve": "sessions.workflow:approve",
            "cancel": "sessions.workflow:cancel",
        },
    ),
    "inbox": Group(
        "Inbox: what the agents of sessions tell people, and how to answer.",
        {
            "list": "sessions.inbox:list_",
            "waiting": "sessions.inbox:waiting",
            "show": "sessions.inbox:show",
            "reply": "sessions.inbox:reply",
            "delete": "sessions.inbox:delete",
        },
    ),
    "box": Group(
        "Boxes: isolated machines to work in, save and copy.",
        {
            "create": "box.commands:create",
            "list": "box.commands:list_",
            "show": "box.commands:show",
            "exec": "box.exec:exec_",
            "shell": "box.shell:shell",
            "cp": "box.files:copy",
            "logs": "box.logs:logs",
            "port": "box.port:port",
            "top": "box.top:top",
            "network": "box.network:network",
            "egress": "box.network:egress",
            "stop": "box.lifecycle:stop",
            "start": "box.lifecycle:start",
            "snapshot": "box.snapshots:snapshot",
            "snapshots": "box.snapshots:snapshots",
            "restore": "box.snapshots:restore",
            "fork": "box.snapshots:fork",
            "move": "box.move:move",
            "delete": "box.lifecycle:delete",
            "ping": "box.health:ping",
            "diagnose": "box.health:diagnose",
            "prune": "box.lifecycle:prune",
        },
    ),
    "interpreter": Group(
        "Interpreters: a persistent Python in a box.",
        {
            "run": "interpreter.commands:run",
            "list": "interpreter.commands:list_",
            "show": "interpreter.commands:show",
            "port": "interpreter.commands:port",
            "delete": "interpreter.commands:delete",
            "smoke": "interpreter.commands:smoke",
            "template": Group(
                "Templates: the Python packages that interpreters start with.",
                {
                    "build": "interpreter.template:build",
                    "refresh": "interpreter.template:refresh",
                    "list": "interpreter.template:list_",
                    "show": "interpreter.template:show",
                    "remove": "interpreter.template:remove",
                },
            ),
            "jupyter": Group(
                "Notebooks that run in boxes.",
                {"install": "interpreter.jupyter:install", "remove": "interpreter.jupyter:remove"},
            ),
        },
    ),
    "volume": Group(
        "Volumes: files that outlive boxes and are shared by them.",
        {"create": "volume:create", "list": "volume:list_", "delete": "volume:delete"},
    ),
    "image": Group(
        "Images: root filesystems that boxes start with.",
        {
            "pull": "image.pull:pull",
            "import": "image.commands:import_",
            "list": "image.commands:list_",
            "show": "image.commands:show",
            "remove": "image.commands:remove",
            "build": "image.build:build",
        },
    ),
    "egress": Group(
        "Egress: what the boxes of an environment may reach.",
        {
            "set": "egress:set_",
            "list": "egress:list_",
            "show": "egress:show",
            "remove": "egress:remove",
            "default": "egress:default",
        },
    ),
    "env": Group(
        "Environments: named recipes for the boxes of runs.",
        {
            "new": "environment.commands:new",
            "list": "environment.commands:list_",
            "show": "environment.commands:show",
            "edit": "environment.commands:edit_",
            "check": "environment.commands:check",
            "build": "environment.commands:build",
            "allow": "environment.commands:allow",
            "disallow": "environment.commands:disallow",
            "remove": "environment.commands:remove",
        },
    ),
    "agent": Group(
        "Agents: the coding agents, and the models each can use.", {"list": "agent:list_", "show": "agent:show"}
    ),
    "model": Group(
        "Models: what agents use, and their keys, which stay on the server.",
        {
            "add": "model.commands:add",
            "list": "model.commands:list_",
            "test": "model.commands:try_",
            "price": "model.price:price",
            "remove": "model.commands:remove",
        },
    ),
    "budget": Group(
        "Budgets: the most that models may cost, for a thread, a tree of threads, or a day.",
        {"set": "model.budget:set_", "list": "model.budget:list_", "remove": "model.budget:remove"},
    ),
    "provider": Group(
        "Providers: where boxes are created, and their accounts.",
        {
            "list": "provider.commands:list_",
            "add": "provider.commands:add",
            "test": "provider.commands:try_",
            "setup": "provider.setup:setup",
            "remove": "provider.commands:remove",
        },
    ),
    "webhook": Group(
        "Webhooks: signed requests to your programs when something happens on threads.",
        {
            "add": "webhook:add",
            "list": "webhook:list_",
            "show": "webhook:show",
            "test": "webhook:send_test",
            "rotate": "webhook:rotate",
            "remove": "webhook:remove",
        },
    ),
    "secret": Group(
        "Secrets: values that boxes use without seeing them.",
        {
            "set": "secret:set_",
            "list": "secret:list_",
            "show": "secret:show",
            "rotate": "secret:rotate",
            "remove": "secret:remove",
        },
    ),
    "key": Group(
        "API keys: create, list and revoke them.",
        {"create": "access.key:create", "list": "access.key:list_", "revoke": "access.key:revoke"},
    ),
    "share": Group(
        "Links by which anybody can read a thread.",
        {"new": "access.share:new", "list": "access.share:list_", "revoke": "access.share:revoke"},
    ),
    "audit": "access.audit:audit",
    "login": "access.login:login",
    "member": Group(
        "Members of your tenant, and their roles: owner, member, viewer.",
        {
            "add": "access.member:add",
            "list": "access.member:list_",
            "role": "access.member:role",
            "remove": "access.member:remove",
        },
    ),
    "tenant": Group(
        "Tenants of a server, each with its own threads, boxes, keys and settings.",
        {
            "new": "access.tenant:new",
            "list": "access.tenant:list_",
            "key": "access.tenant:key",
            "limit": "access.tenant:limit",
            "remove": "access.tenant:remove",
        },
    ),
    "config": Group(
        "The settings of the server, and where each comes from.",
        {"show": "server.config:show"},
    ),
    "backup": "server.backup:backup",
    "restore": "server.restore:restore",
    "check": "server.check:check",
    "compact": "server.compact:compact",
    "doctor": "server.doctor:doctor",
    "purge": "server.purge:purge",
}
"""The values are `module:function`, relative to this package."""


def find(words: Sequence[str]) -> tuple[Group | str | None, list[str]]:
    """Return the command or group that the first words name, and those words."""
    found: Group | str | None = None
    among, named = COMMANDS, []
    for word in words:
        if word not in among:
            break
        found = among[word]
        named.append(word)
        if isinstance(found, str):
            break
        among = found.commands
    return found, named


def load(place: str) -> Callable[..., Any]:
    """Import the function of a command."""
    module, _, function = place.partition(":")
    command: Callable[..., Any] = getattr(import_module(f"holdfast.cli.{module}"), function)
    return command
