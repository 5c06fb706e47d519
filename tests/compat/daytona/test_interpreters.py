"""Interpreter contexts, as programs for the Daytona SDK use them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from daytona import DaytonaTimeoutError, Sandbox
from daytona.common.code_interpreter import ExecutionResult

pytestmark = [pytest.mark.box, pytest.mark.slow]


def printed(sandbox: Sandbox, code: str) -> str:
    done = sandbox.code_interpreter.run_code(code)
    assert done.error is None, done.error
    return done.stdout


def test_what_code_defines_is_found_in_main(shared: Sandbox) -> None:
    square = "def square(n):\n    return n * n\n"
    printed(shared, f"class Point:\n    x = 1\n{square}")
    assert printed(shared, "import pickle; print(pickle.loads(pickle.dumps(Point())).x)") == "1\n"
    assert printed(shared, "import inspect; print(inspect.getsource(square), end='')") == square
    pool = "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n"
    assert printed(shared, pool + "    print(pool.map(square, [1, 2, 3]))") == "[1, 4, 9]\n"


def test_annotations_are_what_the_code_says(shared: Sandbox) -> None:
    assert printed(shared, "def f(x: int): ...\nprint(f.__annotations__)") == "{'x': <class 'int'>}\n"


def test_a_traceback_has_the_lines_of_all_code_and_nothing_else(shared: Sandbox) -> None:
    printed(shared, "def divide():\n    return 1 / 0")
    done = shared.code_interpreter.run_code("print('first')\ndivide()")
    assert done.error is not None
    assert "return 1 / 0" in done.error.traceback
    assert "line 2, in <module>\n    divide()" in done.error.traceback
    assert "daytona-" not in done.error.traceback
    broken = "class Broken(Exception):\n    def __str__(self): raise RuntimeError\nraise Broken"
    done = shared.code_interpreter.run_code(broken)
    assert done.error is not None
    assert (done.error.name, done.error.value) == ("Broken", "")


def test_clients_that_begin_at_once_share_the_default_context(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        codes = [f"v{number} = {number}\nimport os; print(os.getpid())" for number in range(4)]
        processes = set(pool.map(lambda code: printed(sandbox, code), codes))
    assert len(processes) == 1
    assert printed(sandbox, "print(v0 + v1 + v2 + v3)") == "6\n"


def test_code_that_waited_too_long_leaves_the_code_before_it_alone(shared: Sandbox) -> None:
    context = shared.code_interpreter.create_context()
    begun = threading.Event()
    waiting = "import os, time\nprint('begun')\nwhile not os.path.exists('go-on'): time.sleep(0.05)\nprint('done')"

    def first() -> ExecutionResult:
        return shared.code_interpreter.run_code(waiting, context=context, on_stdout=lambda _: begun.set())

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(first)
        assert begun.wait(120)
        with pytest.raises(DaytonaTimeoutError):
            shared.code_interpreter.run_code("second = True", context=context, timeout=1)
        shared.fs.upload_file(b"", "go-on")
        done = running.result(120)
    assert (done.error, done.stdout) == (None, "begun\ndone\n")
    later = shared.code_interpreter.run_code("print('second' in globals())", context=context)
    assert later.stdout == "False\n"


def test_a_context_outlives_its_interpreter(shared: Sandbox) -> None:
    context = shared.code_interpreter.create_context(cwd="/tmp")
    shared.code_interpreter.run_code("x = 1", context=context)
    done = shared.code_interpreter.run_code("import os; print('last'); os._exit(3)", context=context)
    assert done.stdout == "last\n"
    assert done.error is not None
    assert done.error.name == "InterpreterExited"
    assert "exit code 3" in done.error.value
    assert context.id in [each.id for each in shared.code_interpreter.list_contexts()]
    again = shared.code_interpreter.run_code("import os; print('x' in globals(), os.getcwd())", context=context)
    assert again.stdout == "False /tmp\n"


def test_code_that_does_not_end_when_it_is_interrupted_is_ended(shared: Sandbox) -> None:
    """Takes as long as it is given for that."""
    context = shared.code_interpreter.create_context()
    stubborn = "import time\nwhile True:\n    try: time.sleep(1)\n    except BaseException: pass"
    with pytest.raises(DaytonaTimeoutError):
        shared.code_interpreter.run_code(stubborn, context=context, timeout=1)
    assert shared.code_interpreter.run_code("print(1)", context=context).stdout == "1\n"


def test_a_letter_may_come_in_two_pieces(shared: Sandbox) -> None:
    pieces = "import os, time\nos.write(1, 'é'.encode()[:1]); time.sleep(0.2); os.write(1, 'é'.encode()[1:])"
    assert printed(shared, pieces) == "é"
    assert printed(shared, "print('é' * 200_000)") == "é" * 200_000 + "\n"


def test_the_folder_of_a_context_may_be_relative(shared: Sandbox) -> None:
    shared.fs.create_folder("of-a-context", "755")
    context = shared.code_interpreter.create_context(cwd="of-a-context")
    assert context.cwd == "/home/daytona/of-a-context"
    done = shared.code_interpreter.run_code("import os; print(os.getcwd())", context=context)
    assert done.stdout == "/home/daytona/of-a-context\n"
