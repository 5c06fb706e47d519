"""Arrays, tables, images and figures, between a box that has the libraries and a host that may not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.installed_packages import IN_BOX, data_packages

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.guest.kernel import json_codec, value_codec
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.providers.local import LocalProvider

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def box(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Box]:
    async with LocalProvider(tmp_path_factory.mktemp("values")) as provider:
        spec = BoxSpec(mounts=(data_packages(),), env={"PYTHONPATH": IN_BOX})
        box = await provider.create(spec, id="values")
        yield box
        await box.delete()


@pytest.fixture(scope="module")
async def context(box: Box) -> AsyncIterator[Context]:
    kernels = await Kernel.start(box)
    yield await kernels.context()
    await kernels.end()


async def there_and_back(context: Context, code: str) -> Any:
    """Make something in the box, take it here, send it back: is it what it was?"""
    made = await context.execute(f"import numpy, pandas, datetime\nmade = {code}\nmade")
    assert made.ok, made.error
    sent = await context.execute("type(back).__name__, repr(back) == repr(made)", variables={"back": made.value})
    assert sent.value[1], (made.value_text, (await context.execute("back")).value_text)
    return made.value


@pytest.mark.parametrize(
    "code",
    [
        "numpy.arange(6, dtype='int16').reshape(2, 3)",
        "numpy.array([1.5, float('nan'), float('inf')])",
        "numpy.array([['a', 'bc']])",
        "numpy.array([True, False])",
        "numpy.array([1 + 2j])",
        "numpy.array(['2024-02-29'], dtype='datetime64[D]')",
        "numpy.zeros((0, 3))",
    ],
)
async def test_arrays(context: Context, code: str) -> None:
    value = await there_and_back(context, code)
    assert type(value).__name__ in ("ndarray", "Form")  # without numpy here, the document of it


@pytest.mark.parametrize(
    "code",
    [
        "pandas.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, float('nan')]})",
        "pandas.DataFrame({'when': pandas.to_datetime(['2024-02-29', None])}, index=['r', 's'])",
        "pandas.DataFrame({'a': pandas.Series([], dtype='int64')})",
        "pandas.DataFrame()",
        "pandas.Series([1, 2, 3], name='n', dtype='int32')",
        "pandas.Series(['x', 'y'], index=[10, 20])",
    ],
)
async def test_tables(context: Context, code: str) -> None:
    await there_and_back(context, code)


async def test_plain_numbers_of_numpy_are_plain_numbers(context: Context) -> None:
    made = await context.execute("import numpy as n\n[n.int64(3), n.float32(0.5), n.bool_(True), n.str_('s')]")
    assert made.value == [3, 0.5, True, "s"]
    assert [type(each) for each in made.value] == [int, float, bool, str]


async def test_a_figure_comes_back_once_as_a_picture(context: Context, box: Box) -> None:
    code = "from matplotlib import pyplot\npyplot.plot([1, 2])\npyplot.figure()\npyplot.plot([2, 1])\nNone"
    done = await context.execute(code)
    assert done.ok, done.error
    assert [each.media_type for each in done.artifacts] == ["image/png"] * 2
    for each in done.artifacts:
        assert (await box.files.read(each.path)).startswith(b"\x89PNG")
    assert (await context.execute("1")).artifacts == ()


async def test_a_large_table_goes_by_file_whole(context: Context, box: Box) -> None:
    done = await context.execute("import pandas\npandas.DataFrame({'n': range(300_000)})")
    [artifact] = done.artifacts
    assert done.value is None
    form = json_codec.loads(await box.files.read(artifact.path))
    assert (form["$"], form["data"][0][-1]) == ("table", 299_999)


@pytest.mark.parametrize(
    "form",
    [
        {"$": "array", "dtype": "O", "shape": [1], "base64": "AAAAAAAAAAA="},
        {"$": "array", "dtype": "int64", "shape": [1 << 40], "base64": ""},
        {"$": "array", "dtype": "nonsense", "shape": [], "base64": ""},
        {"$": "bytes"},
        {"$": "set", "items": [[]]},
        {"$": "datetime", "iso": "never"},
        {"$": "decimal", "text": "x"},
        {"$": "image", "base64": "AAAA"},
        {"$": []},
    ],
)
def test_a_hostile_form_is_refused_or_stays_what_it_is(form: Any) -> None:
    try:
        value = value_codec.from_form(form)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return
    assert isinstance(value, dict)
