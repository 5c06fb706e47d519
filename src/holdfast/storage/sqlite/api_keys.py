"""API keys in the embedded store."""

from __future__ import annotations

from holdfast.storage.sqlite.streams.store import SqliteStreams
from holdfast.threads.access import ApiKey

_COLUMNS = "id, name, created_at, revoked_at"


class SqliteApiKeys:
    """Keys in the same file as the streams."""

    def __init__(self, store: SqliteStreams, *, tenant: str = "default") -> None:
        self._store = store
        self._tenant = tenant

    def find_key(self, digest: bytes) -> ApiKey | None:
        rows = self._store.query(
            f"SELECT {_COLUMNS} FROM api_keys WHERE digest = ? AND tenant = ?", (digest, self._tenant)
        )
        return ApiKey(*rows[0]) if rows else None  # type: ignore[arg-type]

    def list_keys(self) -> list[ApiKey]:
        rows = self._store.query(f"SELECT {_COLUMNS} FROM api_keys WHERE tenant = ? ORDER BY id", (self._tenant,))
        return [ApiKey(*row) for row in rows]  # type: ignore[arg-type]

    async def add_key(self, key: ApiKey, digest: bytes) -> None:
        await self._store.write(
            lambda connection: connection.execute(
                "INSERT INTO api_keys (id, tenant, name, digest, created_at) VALUES (?, ?, ?, ?, ?)",
                (key.id, self._tenant, key.name, digest, key.created_at),
            ).close()
        )

    async def revoke_key(self, id: str, at: int) -> bool:
        changed = 0

        def write(connection: object) -> None:
            nonlocal changed
            cursor = connection.execute(  # type: ignore[attr-defined]
                "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND tenant = ? AND revoked_at IS NULL",
                (at, id, self._tenant),
            )
            changed = cursor.rowcount

        await self._store.write(write)
        return changed > 0
