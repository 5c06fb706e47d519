"""The Python client: `Client` for async code, `SyncClient` for the rest. Appends are neither lost nor doubled."""

from holdfast.client.backoff import RetryNotice
from holdfast.client.client import Client
from holdfast.client.errors import (
    Closed,
    Conflict,
    DiskFull,
    Forbidden,
    Gone,
    HoldfastError,
    InvalidRequest,
    NotFound,
    NotUnderstood,
    ProducerGap,
    Refused,
    ServerFailed,
    StaleEpoch,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from holdfast.client.models import Acknowledgement, EntryPage, Key, LastEntry, ThreadInfo, ThreadPage, Token
from holdfast.client.sync import SyncClient, SyncTail, SyncThread
from holdfast.client.tail import Tail
from holdfast.client.thread import Thread
from holdfast.threads.entries import Entry

__all__ = [
    "Acknowledgement",
    "Client",
    "Closed",
    "Conflict",
    "DiskFull",
    "Entry",
    "EntryPage",
    "Forbidden",
    "Gone",
    "HoldfastError",
    "InvalidRequest",
    "Key",
    "LastEntry",
    "NotFound",
    "NotUnderstood",
    "ProducerGap",
    "Refused",
    "RetryNotice",
    "ServerFailed",
    "StaleEpoch",
    "SyncClient",
    "SyncTail",
    "SyncThread",
    "Tail",
    "Thread",
    "ThreadInfo",
    "ThreadPage",
    "Token",
    "TooLarge",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
]
