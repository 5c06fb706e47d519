"""What deploy/ has is right. `bin/package` tries the wheel, which needs a registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "holdfast.service").read_text()
    unit = tmp_path / "holdfast.service"
    unit.write_text(text.replace("/opt/holdfast/bin/holdfast", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in done.stderr.splitlines() if "holdfast.service" in line]
    assert said == []


def test_the_files_agree_with_the_project() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    assert "dist/holdfast-*.whl" in image
    assert "HOLDFAST_LISTEN_HOST" in image
    assert 'ENTRYPOINT ["holdfast"]' in image
    compose = (DEPLOY / "compose.yaml").read_text()
    assert '"127.0.0.1:8484:8484"' in compose, "a server without TLS is for this machine only"
    unit = (DEPLOY / "holdfast.service").read_text()
    assert "KillMode=process" in unit, "boxes outlive the server"
