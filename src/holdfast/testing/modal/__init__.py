"""A counterpart of Modal's API on this machine, for tests: the vendor's unmodified SDK talks to it.

    async with ModalCloud(tmp_path) as cloud:
        client = modal.Client(cloud.url, CLIENT_TYPE_CLIENT, (cloud.token_id, cloud.token_secret))

or, for other programs, by the environment: `MODAL_SERVER_URL`, `MODAL_TOKEN_ID`, `MODAL_TOKEN_SECRET`. Sandboxes are
real local boxes, so commands, files, snapshots, volumes and tunnels are real. It has what sandboxes need, and no more.
`cloud.faults` has it misbehave. Of
the first generation of sandboxes (with a GPU or a terminal of their own) it has no logs.
"""

from __future__ import annotations

from holdfast.testing.modal.cloud import ModalCloud, ModalCloudThread
from holdfast.testing.modal.faults import FOREVER, Fault

__all__ = ["FOREVER", "Fault", "ModalCloud", "ModalCloudThread"]
