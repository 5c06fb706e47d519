"""The limits of values in requests: names, ids, paths, texts and numbers. The server checks them."""

from __future__ import annotations

from typing import Annotated, Final

from holdfast.api.document import Limits

MOST_MESSAGES: Final = 20_000
"""Entries in one append."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes in the body of one request."""
MAX_TOKEN_SECONDS: Final = 24 * 3600
MAX_PROMPT: Final = 1024 * 1024
"""Characters."""
MAX_FALLBACKS: Final = 8
"""Models that a run may use instead of its own."""
MAX_TIMEOUT: Final = 3 * 24 * 3600
"""The longest timeout of a run, in seconds."""
OUTPUT_LIMIT: Final = 8_000
"""Characters of each stream in the result of an execution, unless the interpreter sets another limit."""
RESERVED_ENTRY_IDS: Final = (
    "start-r-",
    "end-r-",
    "cancel-r-",
    "interrupt-r-",
    "r-",
    "checkpoint-r-",
    "forked-",
    "rewound-",
    "task-t-",
    "child-start-t-",
    "child-end-r-",
    "child-result-r-",
    "child-read-r-",
    "reported-r-",
    "session-change-",
    "workflow-",
)
"""How the ids of entries begin that only runs write. An id is taken once: a caller that took one of these would keep
the end of a run off the thread."""
_MAX_PATH: Final = 4095
_MEGABYTE: Final = 1024 * 1024


def check_chosen_id(id: str) -> str:
    """Check the id that a caller chose for an entry. Raises ValueError if it is reserved for runs."""
    if id.startswith(RESERVED_ENTRY_IDS):
        raise ValueError(f"the id {id!r} is reserved for runs: use another one, or none")
    return id


def without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid UTF-8") from None
    return text


def _path(text: str) -> str:
    # Not in the schema: there, whoever tries a longer one in a query would see the limit of URLs instead.
    if len(without_nul(text).encode()) > _MAX_PATH:
        raise ValueError(f"must have at most {_MAX_PATH} bytes")
    return text


# --- texts and names ---

Printable = Annotated[str, Limits(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
Title = Annotated[str, Limits(min_length=1, max_length=500)]
Name = Annotated[str, Limits(min_length=1, max_length=128, check=without_nul)]
PathText = Annotated[str, Limits(min_length=1, check=_path)]
BoxKey = Annotated[str, Limits(min_length=1, check=_path)]
"""The key of a box."""
Subpath = Annotated[str, Limits(max_length=1023, check=without_nul)]
Pattern = Annotated[str, Limits(min_length=1, check=_path)]
LabelName = Annotated[str, Limits(min_length=1, max_length=128, pattern=r"^[^:\x00-\x1f]+$")]
LabelValue = Annotated[str, Limits(max_length=512)]
Labels = Annotated[dict[LabelName, LabelValue], Limits(max_length=64)]
Base64 = Annotated[str, Limits(schema={"description": "Bytes, in base64.", "contentEncoding": "base64"})]
Password = Annotated[str, Limits(schema={"format": "password", "writeOnly": True})]
Secret = Annotated[str, Limits(min_length=1, max_length=4096, schema={"format": "password", "writeOnly": True})]

# --- ids ---

ThreadId = Annotated[str, Limits(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
EntryId = Annotated[str, Limits(min_length=1, max_length=128, pattern=r"^[!-~]+$", check=check_chosen_id)]
"""The id of an entry, if the caller chooses it."""
RunId = Annotated[str, Limits(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
"""The id of a run (`r-…`), or of a thread, which stands for its latest run."""
BoxId = Annotated[str, Limits(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
ProcessId = Annotated[str, Limits(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
SnapshotId = Annotated[str, Limits(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
InterpreterId = Annotated[str, Limits(pattern=r"^[A-Za-z0-9_-]{1,120}$")]
ExecutionId = Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Digest = Annotated[str, Limits(pattern=r"^[0-9a-f]{64}$")]

# --- names of things ---

ProviderName = Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
AccountName = Annotated[str, Limits(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""The name of a provider's account, which is also the name of a folder."""
SettingName = Annotated[str, Limits(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
SettingText = Annotated[str, Limits(max_length=2000, check=without_nul)]
VolumeName = Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
EnvironmentName = Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
ImageText = Annotated[str, Limits(min_length=1, max_length=511, check=without_nul)]
"""The image of a box: a name, or anything that its provider accepts."""
ImageName = Annotated[str, Limits(min_length=1, max_length=255)]
AgentName = Annotated[str, Limits(pattern=r"^[a-z][a-z0-9-]{0,31}(:[^\x00-\x1f\x7f]{1,1000})?$")]
"""The name of an agent, or `acp:` and a command: `acp:opencode acp`."""
ModelName = Annotated[str, Limits(min_length=1, max_length=256, check=without_nul)]
PolicyText = Annotated[str, Limits(min_length=1, max_length=200, check=without_nul)]
"""A checkpoint policy: `every`, `off`, or `every keep=20 size=500M`."""
ModelNames = Annotated[tuple[ModelName, ...], Limits(max_length=MAX_FALLBACKS)]

# --- what runs ---

PromptText = Annotated[str, Limits(min_length=1, max_length=MAX_PROMPT, check=without_nul)]
Argument = Annotated[str, Limits(max_length=131_000, check=without_nul)]
Arguments = Annotated[list[Argument], Limits(min_length=1, max_length=4096)]
VariableName = Annotated[str, Limits(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=512)]
Variables = Annotated[dict[VariableName, Argument], Limits(max_length=1024)]
RuleText = Annotated[str, Limits(min_length=1, max_length=1024, check=without_nul)]

# --- numbers ---

StrictBool = Annotated[bool, Limits(strict=True)]
PortNumber = Annotated[int, Limits(ge=1, le=65535)]
MemoryBytes = Annotated[int, Limits(ge=16 * _MEGABYTE, lt=1 << 60, strict=True)]
DiskBytes = Annotated[int, Limits(ge=_MEGABYTE, lt=1 << 60, strict=True)]
Cores = Annotated[float, Limits(ge=0.01, le=1024, allow_inf_nan=False, strict=True)]
Pids = Annotated[int, Limits(ge=4, lt=1 << 60, strict=True)]
IdleSeconds = Annotated[int, Limits(ge=0, lt=1 << 60, strict=True)]
Seconds = Annotated[float, Limits(gt=0, le=86_400, allow_inf_nan=False)]
