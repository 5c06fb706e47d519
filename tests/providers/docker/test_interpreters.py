"""The core of the interpreters' tests, in boxes at a real Docker daemon.

The tests are the same, with another server and spec. Not all are here: some tell nothing
of the boxes, one needs git, which the image does not have, and sessions on volumes are still to come.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.interpreter.test_interpreter import (  # noqa: F401  fixtures, and tests that run here too
    host,
    py,
    test_a_box_that_was_deleted_under_it_is_replaced_and_the_loss_is_said,
    test_a_child_has_a_box_of_its_own_the_same_budget_and_what_it_submits_is_kept,
    test_a_killed_kernel_is_reported_and_a_new_one_is_there,
    test_branches_begin_with_all_there_is_and_go_their_own_ways,
    test_more_memory_than_the_box_has_kills_the_kernel_and_the_reason_is_told,
    test_state_lives_from_call_to_call_and_submit_gives_the_answer,
    test_tools_are_functions_of_this_process_and_may_change,
    test_what_its_code_serves_on_a_port_is_at_a_url_with_a_token_for_it,
)
from tests.providers.docker.engine import PYTHON_IMAGE, DockerEngine
from tests.serving import serving

from holdfast.api.box.spec import BoxSpec
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"docker_host": engine.url, "docker_image": PYTHON_IMAGE}
    with serving(tmp_path_factory.mktemp("interpreters") / "home", provider_settings=settings) as server:
        yield server


@pytest.fixture
def spec() -> BoxSpec:
    return BoxSpec(provider="docker")
