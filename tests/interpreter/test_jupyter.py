"""Notebooks in boxes: our kernel, driven by Jupyter's own client, on a real server."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from holdfast import SyncClient
from holdfast.interpreter.kernelspec import install, kernel_spec
from holdfast.testing.server import ServerProcess

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.xdist_group("interpreter-jupyter"),
]

_WAIT: Final = 60.0
_CHECKOUT: Final = Path(__file__).parents[2]


@dataclass
class Shown:
    """What a cell shows."""

    status: str
    error: str = ""
    streams: dict[str, str] = field(default_factory=dict)
    result: dict[str, str] = field(default_factory=dict)
    displayed: list[dict[str, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)


class Notebook:
    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def run(self, code: str, *, on_stream: Any = None) -> Shown:
        shown = Shown("")

        def hear(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            shown.order.append(kind)
            if kind == "stream":
                shown.streams[content["name"]] = shown.streams.get(content["name"], "") + content["text"]
                if on_stream is not None:
                    on_stream(content["text"])
            elif kind == "execute_result":
                shown.result = content["data"]
            elif kind == "display_data":
                shown.displayed.append(content["data"])
            elif kind == "error":
                shown.error = "\n".join(content["traceback"])

        reply = self.client.execute_interactive(code, timeout=_WAIT, output_hook=hear)
        shown.status = reply["content"]["status"]
        return shown


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("jupyter") / "home") as server:
        yield server
        with SyncClient(server.url, api_key=server.api_key) as client:
            assert [each.id for each in client.boxes.list()] == [], "a notebook's box goes with it"


@pytest.fixture(scope="module")
def notebook(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """With the kernel as it is installed, but for what its box has."""
    prefix = tmp_path_factory.mktemp("prefix")
    spec = kernel_spec(env={"HOLDFAST_HOME": str(server.home), "HOLDFAST_URL": "", "PYTHONPATH": str(_CHECKOUT)})
    spec["argv"][spec["argv"].index("holdfast.interpreter.jupyter")] = "tests.interpreter.data_kernel"
    install(spec, prefix=str(prefix))
    known = KernelSpecManager(kernel_dirs=[str(prefix / "share" / "jupyter" / "kernels")])
    # Not over TCP, where other programs of this machine could listen.
    manager = KernelManager(kernel_name="holdfast", kernel_spec_manager=known, transport="ipc")
    manager.connection_file = str(tmp_path_factory.mktemp("run") / "kernel.json")
    manager.ip = str(tmp_path_factory.mktemp("ipc") / "kernel")
    manager.start_kernel(cwd=str(_CHECKOUT))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=_WAIT)
        yield Notebook(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def test_cells_share_their_state_and_show_values(notebook: Notebook) -> None:
    assert notebook.run("x = 20").result == {}
    shown = notebook.run("print('out')\nimport sys\nprint('err', file=sys.stderr)\nx + 1")
    assert shown.status == "ok"
    assert shown.streams == {"stdout": "out\n", "stderr": "err\n"}
    assert shown.result == {"text/plain": "21"}
    assert notebook.run("_").result == {"text/plain": "21"}
    assert notebook.run("import asyncio\nawait asyncio.sleep(0, 'äöü')").result == {"text/plain": "'äöü'"}


def test_output_comes_while_the_cell_runs(notebook: Notebook) -> None:
    """The cell waits for an answer that is given when its output was seen."""
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        if "waiting" in text:
            notebook.manager.interrupt_kernel()

    shown = notebook.run("import time\nprint('waiting', flush=True)\nwhile True: time.sleep(0.01)", on_stream=hear)
    assert shown.status == "error"
    assert "KeyboardInterrupt" in shown.error
    assert heard == ["waiting\n"]
    assert notebook.run("'still here'").result == {"text/plain": "'still here'"}


def test_errors_are_told_by_the_lines_of_the_cell(notebook: Notebook) -> None:
    shown = notebook.run("def broken():\n    return 1 / 0\n\nbroken()")
    assert shown.status == "error"
    assert "line 2, in broken" in shown.error
    assert shown.error.endswith("ZeroDivisionError: division by zero")
    assert "holdfast" not in shown.error
    assert "SyntaxError" in notebook.run("1 +").error


def test_a_figure_is_shown_as_a_picture(notebook: Notebook) -> None:
    shown = notebook.run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()")
    [figure] = shown.displayed
    assert base64.b64decode(figure["image/png"]).startswith(b"\x89PNG")
    slow = {"stderr": "Matplotlib is building the font cache; this may take a moment.\n"}  # said after five seconds
    assert shown.streams in ({}, slow)


def test_a_table_is_shown_as_one(notebook: Notebook) -> None:
    shown = notebook.run("import pandas as pd\ntable = pd.DataFrame({'a': [1, 2]})\ntable")
    assert "<table" in shown.result["text/html"]
    shown = notebook.run("print('before')\ndisplay(table, 'text')\nprint('after')")
    assert ["text/html" in each for each in shown.displayed] == [True, False]
    assert [each for each in shown.order if each in ("stream", "display_data")] == [
        "stream", "display_data", "display_data", "stream"
    ]  # fmt: skip


def test_commands_and_magics_run_in_the_box(notebook: Notebook) -> None:
    assert notebook.run("!echo hello && cat /etc/hostname-that-is-not").streams["stdout"] == "hello\n"
    assert notebook.run("lines = !printf 'a\\nb'\nlines").result == {"text/plain": "['a', 'b']"}
    assert notebook.run("%cd /tmp\n%pwd").result == {"text/plain": "'/tmp'"}
    assert notebook.run("%%bash\nfor n in 1 2; do echo $n; done").streams["stdout"] == "1\n2\n"
    assert "the magic %nonsense is not supported" in notebook.run("%nonsense").error


def test_names_are_completed_and_explained(notebook: Notebook) -> None:
    notebook.run("numbers = [1]\ndef counted(things: list) -> int:\n    'How many.'\n    return len(things)")
    told = notebook.client.complete("print(numbers.app", reply=True, timeout=_WAIT)["content"]
    assert (told["matches"], told["cursor_start"]) == (["numbers.append"], 6)
    assert "numbers" in notebook.client.complete("numb", reply=True, timeout=_WAIT)["content"]["matches"]
    told = notebook.client.inspect("counted(numbers)", 3, reply=True, timeout=_WAIT)["content"]
    assert told["found"]
    assert "counted(things: list) -> int" in told["data"]["text/plain"]
    assert "How many." in told["data"]["text/plain"]
    assert not notebook.client.inspect("nothing", reply=True, timeout=_WAIT)["content"]["found"]
    notebook.run("41 + 1")
    assert notebook.run("_").result == {"text/plain": "42"}


@pytest.mark.parametrize("killed", [False, True])
def test_a_restart_begins_anew_and_leaves_no_box(notebook: Notebook, server: ServerProcess, killed: bool) -> None:
    notebook.run("gone = 1")
    notebook.manager.restart_kernel(now=killed)
    notebook.client.wait_for_ready(timeout=_WAIT)
    assert "NameError" in notebook.run("gone").error
    assert notebook.run("1 + 1").result == {"text/plain": "2"}
    with SyncClient(server.url, api_key=server.api_key) as client:
        assert len(list(client.boxes.list())) == 1


def test_a_killed_process_is_said_to_be(notebook: Notebook) -> None:
    shown = notebook.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert shown.status == "error"
    assert "memory is lost" in shown.error
    assert notebook.run("display(1)").status == "ok"


def test_the_kernel_is_installed_by_a_command(tmp_path: Path) -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "interpreter", "jupyter", "install", "--prefix", str(tmp_path),
         "--template", "data", "--home", str(tmp_path / "home"), "--json"],
        capture_output=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    [spec] = [json.loads(each.read_text()) for each in tmp_path.glob("share/jupyter/kernels/holdfast/kernel.json")]
    assert told["spec"] == spec
    assert spec["argv"][1:] == [
        "-m", "holdfast.interpreter.jupyter", "-f", "{connection_file}", "--BoxKernel.template=data"
    ]  # fmt: skip
    assert spec["env"] == {"HOLDFAST_HOME": str(tmp_path / "home")}


# --- interrupts, and what IPython has ---


def test_a_cell_that_no_interrupt_reaches_is_killed_and_the_next_one_runs(notebook: Notebook) -> None:
    notebook.run("before = 1")
    interrupted: list[str] = []

    def interrupt(text: str) -> None:
        if not interrupted:
            interrupted.append(text)
            notebook.manager.interrupt_kernel()

    shown = notebook.run("print('began', flush=True)\nsum(range(10**13))", on_stream=interrupt)
    assert shown.status == "error"
    assert "Its memory is lost" in shown.error
    after = notebook.run("'before' in globals()")
    assert (after.status, after.result) == ("ok", {"text/plain": "False"})
    assert notebook.run("display('again')").displayed == [{"text/plain": "'again'"}], "it serves as before"


def test_what_is_imported_of_ipython_shows_in_the_notebook(notebook: Notebook) -> None:
    shown = notebook.run(
        "from IPython.display import HTML, Markdown, Image, display, clear_output\n"
        "display(HTML('<b>bold</b>'), Markdown('*m*'))\n"
        "display({'text/plain': 'given'}, raw=True)\n"
        "HTML('<i>last</i>')"
    )
    assert shown.status == "ok", shown.error
    assert [each.get("text/html") or each.get("text/markdown") or each["text/plain"] for each in shown.displayed] == [
        "<b>bold</b>", "*m*", "given"
    ]  # fmt: skip
    assert shown.result["text/html"] == "<i>last</i>"
    png = base64.b64encode(b"\x89PNG").decode()
    assert notebook.run("display(Image(b'\\x89PNG'))").displayed[0]["image/png"] == png
    changed = notebook.run("h = display('a', display_id=True)\nh.update('b')\nclear_output()")
    assert changed.order.count("display_data") == 1
    assert changed.order.count("update_display_data") == 1
    assert changed.order.count("clear_output") == 1
    assert notebook.run("import IPython\nIPython.get_ipython() is not None").result == {"text/plain": "True"}


def test_nothing_that_the_page_would_run_leaves_the_box(notebook: Notebook) -> None:
    """Whoever runs in Jupyter's page can start terminals on this machine."""
    shown = notebook.run(
        "from IPython.display import HTML, Javascript, Markdown, SVG, display\n"
        "display(Javascript('attack()'), HTML('<b onclick=attack()>a</b><script>attack()</script>'))\n"
        "display(Markdown('<img src=x onerror=attack()>'), SVG('<svg onload=\"attack()\"/>'))\n"
        "display({'application/javascript': 'attack()', 'text/plain': 'told'}, raw=True)\n"
        "print('\\x1b]0;attack\\x07', end='')\n"
        "HTML('<iframe srcdoc=\"<script>attack()</script>\"></iframe>last')"
    )
    assert shown.status == "ok", shown.error
    script, page, prose, drawing, raw = shown.displayed
    assert set(script) == {"text/plain"}
    assert page["text/html"] == "<b>a</b>"
    assert prose["text/markdown"] == "&lt;img src=x onerror=attack()>"
    assert drawing["text/html"].startswith('<img src="data:image/svg+xml;base64,')
    assert raw == {"text/plain": "told"}
    assert shown.result["text/html"] == "last"
    assert "\x1b" not in shown.streams["stdout"]


def test_names_that_a_cell_replaced_do_not_reach_what_serves_it(notebook: Notebook) -> None:
    notebook.run("import builtins\nkept = builtins.str\nbuiltins.str = None\nexec = globals = repr = None")
    shown = notebook.run("class T:\n    def _repr_html_(self): return '<p>'\nT()")
    assert shown.result.get("text/html") == "<p></p>", shown
    assert "kept" in notebook.client.complete("kep", reply=True, timeout=_WAIT)["content"]["matches"]
    assert notebook.run("builtins.str = kept\ndel exec, globals, repr").status == "ok"
    assert notebook.run("'_holdfast_notebook' in globals()").result == {"text/plain": "False"}
