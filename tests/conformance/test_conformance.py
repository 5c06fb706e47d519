"""The published conformance suite of Durable Streams passes whole, its subscription tests included."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.testing.server import ServerProcess

HERE = Path(__file__).parent
TESTS = 338
"""Of @durable-streams/server-conformance-tests 0.3.6."""


@pytest.mark.xdist_group("conformance")
def test_every_test_of_the_published_suite_passes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", auth=False, long_poll_timeout=2.0) as server:
        run_suite(server, tmp_path)


def run_suite(server: ServerProcess, tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node, "node is missing: run this with bin/test, which brings its own"
    report = tmp_path / "report.json"
    run = subprocess.run(
        [
            *(node, "node_modules/vitest/vitest.mjs", "run", "--reporter=json", f"--outputFile={report}"),
            "--testTimeout=60000",  # its default is 5 s, which a busy machine may need for one request
        ],
        cwd=HERE,
        env={**os.environ, "CONFORMANCE_TEST_URL": server.url, "CONFORMANCE_LONG_POLL_MS": "2000"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert report.exists(), run.stdout + run.stderr
    results = json.loads(report.read_text())
    failures = [
        f"{test['fullName']}: {test['failureMessages'][0][:500]}"
        for file in results["testResults"]
        for test in file["assertionResults"]
        if test["status"] != "passed"
    ]
    assert failures == []
    assert results["numPassedTests"] == results["numTotalTests"] == TESTS
