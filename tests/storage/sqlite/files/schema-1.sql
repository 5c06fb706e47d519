BEGIN TRANSACTION;
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) WITHOUT ROWID;
CREATE TABLE box_leases (
    tenant TEXT NOT NULL DEFAULT 'default',
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE TABLE box_nodes (
    tenant TEXT NOT NULL DEFAULT 'default',
    node TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (tenant, node)
) WITHOUT ROWID;
CREATE TABLE boxes (
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
CREATE TABLE chunks (
    stream INTEGER NOT NULL,
    "end" INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (stream, "end")
) WITHOUT ROWID;
INSERT INTO "chunks" VALUES(1,6,X'666972737420');
INSERT INTO "chunks" VALUES(1,12,X'66696C656420');
INSERT INTO "chunks" VALUES(2,128,X'7B226964223A22652D31222C227473223A312C227061796C6F6164223A7B2274797065223A2263686174222C2274657874223A2268656C6C6F2031227D7D2C0A7B226964223A22652D32222C227473223A322C227061796C6F6164223A7B2274797065223A2263686174222C2274657874223A2268656C6C6F2032227D7D2C0A');
CREATE TABLE egress_decisions (
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
CREATE TABLE egress_policies (
    tenant TEXT NOT NULL DEFAULT 'default',
    environment TEXT NOT NULL,
    policy TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, environment)
) WITHOUT ROWID;
CREATE TABLE journal (number INTEGER PRIMARY KEY, entries BLOB NOT NULL);
INSERT INTO "journal" VALUES(3,X'000000235B5B312C32362C31342C5B2270222C312C315D2C6E756C6C2C66616C73652C5B5D5D5D696E20746865206A6F75726E616C');
INSERT INTO "journal" VALUES(4,X'0000002A5B5B322C3139322C36342C6E756C6C2C6E756C6C2C66616C73652C5B5B22652D33222C3139325D5D5D5D7B226964223A22652D33222C227473223A332C227061796C6F6164223A7B2274797065223A2263686174222C2274657874223A2268656C6C6F2033227D7D2C0A');
CREATE TABLE message_keys (
    stream INTEGER NOT NULL,
    key TEXT NOT NULL,
    "end" INTEGER NOT NULL,
    PRIMARY KEY (stream, key)
) WITHOUT ROWID;
INSERT INTO "message_keys" VALUES(2,'e-1',64);
INSERT INTO "message_keys" VALUES(2,'e-2',128);
CREATE TABLE models (
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
CREATE TABLE producers (
    stream INTEGER NOT NULL,
    producer TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (stream, producer)
) WITHOUT ROWID;
INSERT INTO "producers" VALUES(1,'p',1,0);
CREATE TABLE purges (stream INTEGER PRIMARY KEY);
CREATE TABLE runs_cache (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL DEFAULT 'default',
    thread TEXT NOT NULL,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    run TEXT NOT NULL, /* as of fold 1 */
    PRIMARY KEY (id, tenant)
) WITHOUT ROWID;
CREATE TABLE streams (
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
INSERT INTO "streams" VALUES(1,'default','a','text/plain','{"content_type":"text/plain","ttl_seconds":null,"expires_at":null,"closed":false,"fork":null}',NULL,NULL,1767225600000,1767225600000,0,NULL,'m',NULL,0,0);
INSERT INTO "streams" VALUES(2,'default','threads/t-1','application/json','{"content_type":"application/json","ttl_seconds":null,"expires_at":null,"closed":false,"fork":null}',NULL,NULL,1767225600000,1767225600000,0,NULL,NULL,NULL,0,0);
CREATE TABLE subscription_links (
    tenant TEXT NOT NULL DEFAULT 'default',
    subscription TEXT NOT NULL,
    path TEXT NOT NULL,
    acked INTEGER NOT NULL,
    explicit INTEGER NOT NULL,
    glob INTEGER NOT NULL,
    PRIMARY KEY (tenant, subscription, path)
) WITHOUT ROWID;
CREATE TABLE subscriptions (
    tenant TEXT NOT NULL DEFAULT 'default',
    id TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE TABLE threads_cache (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL DEFAULT 'default',
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
    runs TEXT, /* as of fold 1: another number here makes every row anew */
    unsettled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX streams_by_source ON streams (source) WHERE source IS NOT NULL;
CREATE INDEX streams_by_deadline
    ON streams (coalesce(expires_at, last_access + ttl_seconds * 1000))
    WHERE deleted = 0 AND (expires_at IS NOT NULL OR ttl_seconds IS NOT NULL);
CREATE INDEX threads_by_activity ON threads_cache (tenant, last_activity_at DESC, id DESC);
CREATE INDEX threads_by_parent ON threads_cache (tenant, parent, last_activity_at DESC, id DESC);
CREATE INDEX threads_unsettled ON threads_cache (tenant) WHERE unsettled = 1;
CREATE INDEX runs_by_thread ON runs_cache (tenant, thread, id DESC);
CREATE UNIQUE INDEX boxes_by_key ON boxes (tenant, key)
    WHERE key IS NOT NULL AND lifetime != 'one-shot' AND state NOT IN ('deleted', 'gone');
CREATE INDEX boxes_by_age ON boxes (tenant, created_at DESC, id DESC);
CREATE INDEX boxes_by_node ON boxes (tenant, node) WHERE state NOT IN ('deleted', 'gone');
CREATE INDEX egress_decisions_by_box ON egress_decisions (box, id DESC);
CREATE INDEX egress_decisions_by_age ON egress_decisions (at);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('streams',2);
COMMIT;
PRAGMA user_version = 1;

