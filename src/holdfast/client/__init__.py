"""The Python client: `Client` for async code, `SyncClient` for everything else. Appends are never lost or duplicated.

All public names are listed here and loaded on first use, because most programs use few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.api.access.keys import CreatedKey, Key, Token
    from holdfast.api.box.records import BoxRecord, BoxRecordPage, MadeBox, Pruned
    from holdfast.api.box.usage import BoxUsage, BoxUsages
    from holdfast.api.egress import DefaultList, EgressDecision, EgressDecisionPage, EnvironmentPolicy
    from holdfast.api.errors import (
        Conflict,
        DiskFull,
        Forbidden,
        Gone,
        HoldfastError,
        InvalidRequest,
        NotFound,
        NotUnderstood,
        Refused,
        ServerFailed,
        TooLarge,
        TooManyRequests,
        Unauthorized,
        Unreachable,
    )
    from holdfast.api.errors.threads import Closed, ProducerGap, StaleEpoch
    from holdfast.api.interpreters import InterpreterDetail, InterpreterInfo, InterpreterPage, RemoteExecution
    from holdfast.api.model.budgets import Budget, BudgetRecord, BudgetScope, Cost, CostReport
    from holdfast.api.model.models import ModelAnswer, ModelPrice, ModelRecord, ModelTrial, Price
    from holdfast.api.run.agents import AgentRecord, OfferedModel
    from holdfast.api.run.info import RunInfo
    from holdfast.api.run.runs import Changes, Diagnosis, Launched, RunPage, Steered
    from holdfast.api.run.tasks import TaskInfo, TaskResult, ThreadTree
    from holdfast.api.secrets import Binding, Exposure, Placement, SecretEvent, SecretRecord
    from holdfast.api.session.gateway import Link, Member, Role, Tunnel, TunnelProtocol
    from holdfast.api.session.sessions import PromptInfo, SessionInfo, SessionPage
    from holdfast.api.thread.entries import Acknowledgement, Entry
    from holdfast.api.thread.threads import EntryPage, LastEntry, ThreadInfo, ThreadPage
    from holdfast.client.box.box import RemoteBox
    from holdfast.client.box.boxes import Boxes
    from holdfast.client.box.process import RemoteProcess, Terminal
    from holdfast.client.box.sync import SyncBoxes, SyncVolumes
    from holdfast.client.box.volumes import Volumes
    from holdfast.client.client import Client
    from holdfast.client.connection import RetryNotice
    from holdfast.client.interpreters import Interpreters
    from holdfast.client.model.costs import Costs
    from holdfast.client.model.models import ModelStore
    from holdfast.client.run.agents import AgentStore
    from holdfast.client.run.runs import Runs
    from holdfast.client.run.tasks import Tasks
    from holdfast.client.secrets import SecretStore
    from holdfast.client.session.gateway import SessionGateways
    from holdfast.client.session.inbox import Inbox
    from holdfast.client.session.sessions import Sessions
    from holdfast.client.session.workflows import Workflows
    from holdfast.client.sync import SyncClient
    from holdfast.client.thread.sync import SyncTail, SyncThread
    from holdfast.client.thread.tail import Tail
    from holdfast.client.thread.thread import Thread

__all__ = [
    "Acknowledgement",
    "AgentRecord",
    "AgentStore",
    "Binding",
    "BoxRecord",
    "BoxRecordPage",
    "BoxUsage",
    "BoxUsages",
    "Boxes",
    "Budget",
    "BudgetRecord",
    "BudgetScope",
    "Changes",
    "Client",
    "Closed",
    "Conflict",
    "Cost",
    "CostReport",
    "Costs",
    "CreatedKey",
    "DefaultList",
    "Diagnosis",
    "DiskFull",
    "EgressDecision",
    "EgressDecisionPage",
    "Entry",
    "EntryPage",
    "EnvironmentPolicy",
    "Exposure",
    "Forbidden",
    "Gone",
    "HoldfastError",
    "Inbox",
    "InterpreterDetail",
    "InterpreterInfo",
    "InterpreterPage",
    "Interpreters",
    "InvalidRequest",
    "Key",
    "LastEntry",
    "Launched",
    "Link",
    "MadeBox",
    "Member",
    "ModelAnswer",
    "ModelPrice",
    "ModelRecord",
    "ModelStore",
    "ModelTrial",
    "NotFound",
    "NotUnderstood",
    "OfferedModel",
    "Placement",
    "Price",
    "ProducerGap",
    "PromptInfo",
    "Pruned",
    "Refused",
    "RemoteBox",
    "RemoteExecution",
    "RemoteProcess",
    "RetryNotice",
    "Role",
    "RunInfo",
    "RunPage",
    "Runs",
    "SecretEvent",
    "SecretRecord",
    "SecretStore",
    "ServerFailed",
    "SessionGateways",
    "SessionInfo",
    "SessionPage",
    "Sessions",
    "StaleEpoch",
    "Steered",
    "SyncBoxes",
    "SyncClient",
    "SyncTail",
    "SyncThread",
    "SyncVolumes",
    "Tail",
    "TaskInfo",
    "TaskResult",
    "Tasks",
    "Terminal",
    "Thread",
    "ThreadInfo",
    "ThreadPage",
    "ThreadTree",
    "Token",
    "TooLarge",
    "TooManyRequests",
    "Tunnel",
    "TunnelProtocol",
    "Unauthorized",
    "Unreachable",
    "Volumes",
    "Workflows",
]

_HOMES = {
    "holdfast.api.run.agents": "AgentRecord OfferedModel",
    "holdfast.api.box.usage": "BoxUsage BoxUsages",
    "holdfast.api.box.records": "BoxRecord BoxRecordPage MadeBox Pruned",
    "holdfast.api.egress": "DefaultList EgressDecision EgressDecisionPage EnvironmentPolicy",
    "holdfast.api.thread.entries": "Acknowledgement Entry",
    "holdfast.api.errors": (
        "Conflict DiskFull Forbidden Gone HoldfastError InvalidRequest NotFound "
        "NotUnderstood Refused ServerFailed TooLarge TooManyRequests Unauthorized Unreachable"
    ),
    "holdfast.api.errors.threads": "Closed ProducerGap StaleEpoch",
    "holdfast.api.session.gateway": "Link Member Role Tunnel TunnelProtocol",
    "holdfast.api.interpreters": "InterpreterDetail InterpreterInfo InterpreterPage RemoteExecution",
    "holdfast.api.access.keys": "CreatedKey Key Token",
    "holdfast.api.model.budgets": "Budget BudgetRecord BudgetScope Cost CostReport",
    "holdfast.api.model.models": "ModelAnswer ModelPrice ModelRecord ModelTrial Price",
    "holdfast.api.run.info": "RunInfo",
    "holdfast.api.run.runs": "Changes Diagnosis Launched RunPage Steered",
    "holdfast.api.secrets": "Binding Exposure Placement SecretEvent SecretRecord",
    "holdfast.api.run.tasks": "TaskInfo TaskResult ThreadTree",
    "holdfast.api.session.sessions": "PromptInfo SessionInfo SessionPage",
    "holdfast.api.thread.threads": "EntryPage LastEntry ThreadInfo ThreadPage",
    "holdfast.client.run.agents": "AgentStore",
    "holdfast.client.box.box": "RemoteBox",
    "holdfast.client.box.boxes": "Boxes",
    "holdfast.client.box.process": "RemoteProcess Terminal",
    "holdfast.client.box.sync": "SyncBoxes SyncVolumes",
    "holdfast.client.box.volumes": "Volumes",
    "holdfast.client.client": "Client",
    "holdfast.client.connection": "RetryNotice",
    "holdfast.client.model.costs": "Costs",
    "holdfast.client.session.gateway": "SessionGateways",
    "holdfast.client.session.inbox": "Inbox",
    "holdfast.client.session.workflows": "Workflows",
    "holdfast.client.interpreters": "Interpreters",
    "holdfast.client.model.models": "ModelStore",
    "holdfast.client.run.runs": "Runs",
    "holdfast.client.secrets": "SecretStore",
    "holdfast.client.session.sessions": "Sessions",
    "holdfast.client.run.tasks": "Tasks",
    "holdfast.client.sync": "SyncClient",
    "holdfast.client.thread.sync": "SyncTail SyncThread",
    "holdfast.client.thread.tail": "Tail",
    "holdfast.client.thread.thread": "Thread",
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            from importlib import import_module

            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
