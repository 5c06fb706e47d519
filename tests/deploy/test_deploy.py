"""What deploy/ has is right. `bin/package` tries the wheel, which needs a registry."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "deploy"


def test_the_files_agree_with_the_project() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    assert "dist/holdfast-*.whl" in image
    assert "HOLDFAST_LISTEN_HOST" in image
    assert 'ENTRYPOINT ["holdfast"]' in image
    compose = (DEPLOY / "compose.yaml").read_text()
    assert '"127.0.0.1:8484:8484"' in compose, "a server without TLS is for this machine only"
    unit = (DEPLOY / "holdfast.service").read_text()
    assert "KillMode=process" in unit, "boxes outlive the server"
