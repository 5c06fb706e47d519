"""The tables, and how connections to them are opened.

Tables whose names end in `_cache` can be dropped at any time: they are rebuilt from the streams, also when their
definition here changes.

Where callers choose names or ids, the key of a table includes the tenant. The ids of API keys, boxes and egress
decisions are generated, and unique for all tenants: a provider stores boxes by id alone.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from holdfast.storage.errors import DatabaseDamaged, UnknownSchema
from holdfast.storage.sqlite import reserve

VERSION: Final = 2
_MIGRATIONS: Final = {
    2: ("ALTER TABLE chunks ADD COLUMN checksum INTEGER",),
}
"""Upgrades the tables of the previous version to this one. Missing tables and indexes are created anyway."""
_WAL_TRIES: Final = 500

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS streams (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL DEFAULT 'default',
    path TEXT NOT NULL,
    content_type TEXT NOT NULL,
    config TEXT NOT NULL,
    ttl_seconds INTEGER,
    expires_at INTEGER,
    last_access INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    closed INTEGER NOT NULL DEFAULT 0,
    closed_by TEXT,
    last_seq TEXT,
    source INTEGER,
    fork_offset INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, path)
);
CREATE INDEX IF NOT EXISTS streams_by_source ON streams (source) WHERE source IS NOT NULL;
CREATE INDEX IF NOT EXISTS streams_by_deadline
    ON streams (coalesce(expires_at, last_access + ttl_seconds * 1000))
    WHERE deleted = 0 AND (expires_at IS NOT NULL OR ttl_seconds IS NOT NULL);

CREATE TABLE IF NOT EXISTS chunks (
    stream INTEGER NOT NULL,
    "end" INTEGER NOT NULL,
    data BLOB NOT NULL,
    checksum INTEGER,
    PRIMARY KEY (stream, "end")
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS journal (number INTEGER PRIMARY KEY, entries BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS damaged_rows (number INTEGER PRIMARY KEY, entries BLOB NOT NULL);

CREATE TABLE IF NOT EXISTS producers (
    stream INTEGER NOT NULL,
    producer TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (stream, producer)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS message_keys (
    stream INTEGER NOT NULL,
    key TEXT NOT NULL,
    "end" INTEGER NOT NULL,
    PRIMARY KEY (stream, key)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS purges (stream INTEGER PRIMARY KEY);

CREATE TABLE IF NOT EXISTS subscriptions (
    tenant TEXT NOT NULL DEFAULT 'default',
    id TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS subscription_links (
    tenant TEXT NOT NULL DEFAULT 'default',
    subscription TEXT NOT NULL,
    path TEXT NOT NULL,
    acked INTEGER NOT NULL,
    explicit INTEGER NOT NULL,
    glob INTEGER NOT NULL,
    PRIMARY KEY (tenant, subscription, path)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS api_keys (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS key_owners (
    tenant TEXT NOT NULL DEFAULT 'default',
    key TEXT NOT NULL,
    role TEXT NOT NULL,
    member TEXT,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logins (
    tenant TEXT NOT NULL DEFAULT 'default',
    id TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    user TEXT NOT NULL,
    role TEXT NOT NULL,
    via TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    key TEXT,
    member TEXT,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tenants (
    name TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS shares (
    tenant TEXT NOT NULL DEFAULT 'default',
    id TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    thread TEXT NOT NULL,
    stream INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tenant_quotas (
    name TEXT PRIMARY KEY,
    quotas TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS threads_cache (
    tenant TEXT NOT NULL DEFAULT 'default',
    id TEXT NOT NULL,
    stream INTEGER NOT NULL,
    folded INTEGER NOT NULL,
    title TEXT,
    status TEXT NOT NULL,
    parent TEXT,
    labels TEXT NOT NULL,
    archived INTEGER NOT NULL,
    entry_count INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    last_activity_at INTEGER NOT NULL,
    last_entry TEXT,
    runs TEXT, /* as of fold 4: another number here makes every row anew */
    lineage TEXT,
    fork_of TEXT,
    unsettled INTEGER NOT NULL DEFAULT 0,
    session TEXT, /* its state, if the thread is a session */
    session_due INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS threads_by_activity ON threads_cache (tenant, last_activity_at DESC, id DESC);
CREATE INDEX IF NOT EXISTS threads_by_parent ON threads_cache (tenant, parent, last_activity_at DESC, id DESC);
CREATE INDEX IF NOT EXISTS threads_by_source
    ON threads_cache (tenant, fork_of, last_activity_at DESC, id DESC) WHERE fork_of IS NOT NULL;
CREATE INDEX IF NOT EXISTS threads_with_lineage ON threads_cache (tenant) WHERE lineage IS NOT NULL;
CREATE INDEX IF NOT EXISTS threads_unsettled ON threads_cache (tenant) WHERE unsettled = 1;
CREATE INDEX IF NOT EXISTS threads_with_session
    ON threads_cache (tenant, last_activity_at DESC, id DESC) WHERE session IS NOT NULL;
CREATE INDEX IF NOT EXISTS threads_with_due_session ON threads_cache (tenant) WHERE session_due = 1;
CREATE TABLE IF NOT EXISTS runs_cache (
    tenant TEXT NOT NULL DEFAULT 'default',
    id TEXT NOT NULL,
    thread TEXT NOT NULL,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    run TEXT NOT NULL, /* as of fold 3 */
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_thread ON runs_cache (tenant, thread, id DESC);
CREATE TABLE IF NOT EXISTS model_calls_cache (
    tenant TEXT NOT NULL DEFAULT 'default',
    thread TEXT NOT NULL,
    id TEXT NOT NULL,
    stream INTEGER NOT NULL,
    run TEXT NOT NULL,
    model TEXT NOT NULL,
    at INTEGER NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    nanos INTEGER, /* billionths of a dollar */
    estimated INTEGER NOT NULL,
    PRIMARY KEY (tenant, thread, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS row_marks_cache (
    tenant TEXT NOT NULL DEFAULT 'default',
    thread TEXT NOT NULL,
    position INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    thread_row TEXT NOT NULL, /* as of fold 4 */
    PRIMARY KEY (tenant, thread, position)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS model_calls_by_run ON model_calls_cache (tenant, run);
CREATE INDEX IF NOT EXISTS model_calls_by_time ON model_calls_cache (tenant, at);

CREATE TABLE IF NOT EXISTS boxes (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL DEFAULT 'default',
    node TEXT NOT NULL,
    provider TEXT NOT NULL,
    key TEXT,
    spec TEXT NOT NULL,
    lifetime TEXT NOT NULL,
    labels TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    last_active_at INTEGER NOT NULL,
    ended_at INTEGER,
    ended_why TEXT,
    freed INTEGER,
    snapshot TEXT,
    holder TEXT
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS boxes_by_key ON boxes (tenant, key)
    WHERE key IS NOT NULL AND lifetime != 'one-shot' AND state NOT IN ('deleted', 'gone');
CREATE INDEX IF NOT EXISTS boxes_by_age ON boxes (tenant, created_at DESC, id DESC);
CREATE INDEX IF NOT EXISTS boxes_by_node ON boxes (tenant, node) WHERE state NOT IN ('deleted', 'gone');
CREATE TABLE IF NOT EXISTS box_leases (
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS box_nodes (
    tenant TEXT NOT NULL DEFAULT 'default',
    node TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (tenant, node)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS egress_decisions (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL DEFAULT 'default',
    box TEXT NOT NULL,
    at INTEGER NOT NULL,
    host TEXT NOT NULL,
    port INTEGER NOT NULL,
    method TEXT NOT NULL,
    allowed INTEGER NOT NULL,
    why TEXT NOT NULL,
    count INTEGER NOT NULL,
    sent INTEGER NOT NULL,
    received INTEGER NOT NULL,
    ms INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS egress_decisions_by_box ON egress_decisions (box, id DESC);
CREATE INDEX IF NOT EXISTS egress_decisions_by_age ON egress_decisions (at);
CREATE TABLE IF NOT EXISTS egress_policies (
    tenant TEXT NOT NULL DEFAULT 'default',
    environment TEXT NOT NULL,
    policy TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, environment)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS environments (
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    text TEXT,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (tenant, name, version)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS environment_consents (
    tenant TEXT NOT NULL DEFAULT 'default',
    place TEXT NOT NULL,
    digest TEXT NOT NULL,
    allowed_at INTEGER NOT NULL,
    allowed_by TEXT NOT NULL,
    PRIMARY KEY (tenant, place)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS models (
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    endpoints TEXT,
    model TEXT,
    context_window INTEGER,
    max_tokens INTEGER,
    key BLOB,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS model_prices (
    tenant TEXT NOT NULL DEFAULT 'default',
    model TEXT NOT NULL,
    price TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gateway_cookies (
    tenant TEXT NOT NULL DEFAULT 'default',
    digest TEXT NOT NULL,
    place TEXT NOT NULL,
    session TEXT NOT NULL,
    generation TEXT NOT NULL,
    subject TEXT NOT NULL,
    via TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, digest)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budgets (
    tenant TEXT NOT NULL DEFAULT 'default',
    scope TEXT NOT NULL,
    subject TEXT NOT NULL,
    budget TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, subject)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS provider_accounts (
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    settings TEXT NOT NULL,
    credential BLOB,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS named_secrets (
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    bindings TEXT NOT NULL,
    expose TEXT,
    placeholder TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    changed_by TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS secret_events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    at INTEGER NOT NULL,
    action TEXT NOT NULL,
    version INTEGER NOT NULL,
    by_user TEXT NOT NULL,
    box TEXT NOT NULL,
    thread TEXT NOT NULL,
    host TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS secret_events_by_name ON secret_events (tenant, name, number DESC);

CREATE TABLE IF NOT EXISTS memories (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL DEFAULT 'default',
    id TEXT NOT NULL,
    category TEXT NOT NULL,
    content TEXT NOT NULL,
    session TEXT NOT NULL,
    root TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (tenant, id)
);

CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL DEFAULT 'default',
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    recipient TEXT NOT NULL,
    type TEXT NOT NULL,
    content TEXT NOT NULL,
    from_session TEXT,
    from_person TEXT,
    created_at INTEGER NOT NULL,
    context_session TEXT,
    context_task TEXT,
    reply_to TEXT,
    read_at INTEGER,
    UNIQUE (tenant, id)
);
CREATE INDEX IF NOT EXISTS messages_by_recipient ON messages (tenant, kind, recipient, number);

CREATE TABLE IF NOT EXISTS workflow_records (
    tenant TEXT NOT NULL DEFAULT 'default',
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    list TEXT NOT NULL,
    document TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    is_open INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS workflow_records_by_age ON workflow_records (tenant, kind, created_at DESC, id DESC);
CREATE INDEX IF NOT EXISTS workflow_records_open ON workflow_records (tenant, kind) WHERE is_open = 1;

CREATE TABLE IF NOT EXISTS daytona_records (
    tenant TEXT NOT NULL DEFAULT 'default',
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    document TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, id),
    UNIQUE (tenant, kind, name)
) WITHOUT ROWID;
"""


def _statements() -> list[tuple[str, str]]:
    """Returns each statement with the name of what it creates."""
    statements = [statement.strip() for statement in _TABLES.split(";") if statement.strip()]
    return [(statement.split("IF NOT EXISTS ", 1)[1].split()[0], statement) for statement in statements]


def _missing(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
    """Returns caches with another definition or with missing parts, and the statements that create what is missing."""
    there = dict(connection.execute("SELECT name, sql FROM sqlite_schema").fetchall())
    caches = {name: statement for name, statement in _statements() if name.endswith("_cache")}
    as_written = {name: statement.replace("IF NOT EXISTS ", "", 1) for name, statement in caches.items()}
    present = [name for name in caches if name in there]
    outdated = [name for name in present if there[name] != as_written[name]]
    if present and len(present) < len(caches):
        outdated += present
    return outdated, [statement for name, statement in _statements() if name not in there]


def make(path: Path) -> None:
    """Create the file if it is missing, readable by its owner only.

    An existing file is not even opened: closing it again would drop the locks of all connections that this process has
    to it, and another process could then remove the log that they write to.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def connect(path: Path) -> sqlite3.Connection:
    """Returns a connection for use by one thread at a time. The caller begins and ends transactions."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512)
    connection.execute("PRAGMA busy_timeout = 10000")
    try:
        if connection.execute("PRAGMA page_count").fetchone() == (0,):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only possible in a new file; otherwise it writes
        _use_wal(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL) or not reserve.spend(path):
            connection.close()
            raise
        connection.close()
        return connect(path)
    except sqlite3.DatabaseError as error:
        connection.close()
        if not is_corruption(error):
            raise
        raise DatabaseDamaged(f"{path} is damaged or not a database ({error}): restore a backup") from error
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -16000")
    # Some builds of SQLite overwrite every freed page with zeros: the whole journal again and again, and all of a
    # deleted stream, which on a full disk needs more room than there is.
    connection.execute("PRAGMA secure_delete = FAST").fetchall()
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. If two processes open a new file at the same time, SQLite refuses one at once, despite its
    timeout.
    """
    for _ in range(_WAL_TRIES):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA journal_mode = WAL")


def prepare(connection: sqlite3.Connection) -> None:
    """Create missing tables and upgrade older versions. Safe to run at every start, even while another process does the
    same.
    """
    try:
        _prepare(connection)
    except sqlite3.DatabaseError as error:
        if not is_corruption(error):
            raise
        raise DatabaseDamaged(
            f"the database is damaged ({error}): run `holdfast check`, and restore a backup if it reports damage"
        ) from error


def is_corruption(error: sqlite3.Error) -> bool:
    """Returns whether SQLite reports a damaged file, as opposed to a locked or full one."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _prepare(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise UnknownSchema(
            f"the data was written by a newer Holdfast (schema {version}, this one knows {VERSION}): upgrade Holdfast"
        )
    if version == VERSION and not any(_missing(connection)):
        return  # nothing to write, so a server can start and serve reads on a full disk
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # another process may have been first
        for step in range(version + 1 if version else VERSION + 1, VERSION + 1):
            for statement in _MIGRATIONS[step]:
                connection.execute(statement)
        outdated, _ = _missing(connection)
        if outdated:
            # Rebuild all of them together: a row that is up to date does not restore lost runs.
            for name, _ in _statements():
                if name.endswith("_cache"):
                    connection.execute(f"DROP TABLE IF EXISTS {name}")
        for statement in _missing(connection)[1]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
