"""The operations on secrets by reference: `hf://NAME` stands for a secret of the session's box."""

from __future__ import annotations

from typing import Final

from holdfast.api.tools.operation import Field, Operation, ToolGroup, integer, text

_PATH: Final = text(4000)
_REFERENCE: Final = text(500)

OPERATIONS: Final = (
    Operation(
        name="list_secrets",
        group=ToolGroup.SECRETS,
        route="GET /api/secrets/list",
        description="List the secrets of this machine: their references, and the hosts where they can be used.",
        fields=(Field("vaultId", "Ignored: there is one vault.", text(128)),),
        result="secrets [{name, reference, hosts, exposed}]",
        changes=False,
    ),
    Operation(
        name="inject_secrets",
        group=ToolGroup.SECRETS,
        route="POST /api/secrets/inject",
        description=(
            "Write a file from a template in this machine, with secrets in place of references such as hf://NAME. A"
            " secret that is bound to hosts becomes its placeholder, which is replaced in requests to them."
        ),
        fields=(
            Field("templatePath", "The path of the template.", _PATH, required=True),
            Field("outputPath", "The path of the file to write.", _PATH, required=True),
        ),
        result="ok, replaced",
    ),
    Operation(
        name="run_with_secrets",
        group=ToolGroup.SECRETS,
        route="POST /api/secrets/run",
        description=(
            "Run a command in this machine with secrets in its environment. Values of secrets are masked in what it"
            " prints."
        ),
        fields=(
            Field("command", "A command for the shell.", text(64 * 1024), required=True),
            Field(
                "env",
                'Variables and references: {"TOKEN": "hf://NAME"}.',
                {"type": "object", "additionalProperties": _REFERENCE},
                required=True,
            ),
            Field("cwd", "The folder to run it in. Default: the workspace.", _PATH),
            Field("timeout", "Seconds. Default: 60.", integer(1, 600)),
        ),
        result="exitCode, stdout, stderr, truncated",
    ),
    Operation(
        name="fill_secret",
        group=ToolGroup.SECRETS,
        route="POST /api/secrets/fill",
        description="Type a secret into a field of a page in the browser of this machine. Not available yet.",
        fields=(
            Field("selector", "The field, as a CSS selector.", text(1000), required=True),
            Field("secretRef", "The reference of the secret.", _REFERENCE, required=True),
            Field("timeout", "Seconds. Default: 30.", integer(1, 600)),
        ),
        result="ok",
        for_agents=False,
    ),
)
