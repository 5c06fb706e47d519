"""`holdfast model price`: lists, sets and removes prices of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, write_field, write_json, write_table

if TYPE_CHECKING:
    from holdfast.api.model.models import ModelPrice, Price
    from holdfast.client import Client


def price(
    model: Annotated[
        str | None, Argument(metavar="NAME/MODEL", help="Model. Default: list all prices.", show_default=False)
    ] = None,
    input: Annotated[
        float | None, Option("--input", metavar="DOLLARS", help="For a million tokens of input.", show_default=False)
    ] = None,
    output: Annotated[
        float | None, Option("--output", metavar="DOLLARS", help="For a million tokens of output.", show_default=False)
    ] = None,
    cache_read: Annotated[
        float | None,
        Option("--cache-read", metavar="DOLLARS", help="For cached input. Default: as input.", show_default=False),
    ] = None,
    cache_write: Annotated[
        float | None,
        Option("--cache-write", metavar="DOLLARS", help="For input to a cache. Default: as input.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        Option("--file", metavar="PATH", help="Set all prices of a JSON file: {NAME/MODEL: {input, output}}."),
    ] = None,
    remove: Annotated[bool, Option("--remove", help="Forget a price that was set here.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List prices of models, or set one, in dollars for a million tokens.

    Calls of a model without a price are counted, and their cost is unknown. A price is for the calls to come: it does
    not change what earlier calls cost. A model of your own that costs nothing has the price 0.

    \b
    holdfast model price
    holdfast model price mine/qwen3 --input 0 --output 0
    holdfast model price --file prices.json
    """
    wanted = _wanted(model, input, output, cache_read, cache_write, file)
    if remove and (model is None or wanted):
        raise CommandError(
            "--remove needs a model, and no price",
            next_step="holdfast model price NAME/MODEL --remove",
            exit=Exit.USAGE,
        )

    async def work(client: Client) -> list[ModelPrice]:
        if remove and model is not None:
            await client.models.remove_price(model)
        if wanted:
            return [await client.models.set_price(name, each) for name, each in wanted.items()]
        return [each for each in await client.models.prices() if model is None or each.model == model]

    found = ask(where, work)
    if as_json:
        write_json({"prices": [each.to_json() for each in found]})
    elif not found and model is not None:
        write_field("price", Cell("unknown", "yellow"), Cell(f"  {model}", "dim"))
        write_field("next", hint(f"holdfast model price {model} --input DOLLARS --output DOLLARS"))
    else:
        columns = ("model", "input", "output", "cache read", "cache write", "from")
        write_table(columns, [_row(each) for each in found])


def _wanted(
    model: str | None,
    input: float | None,
    output: float | None,
    cache_read: float | None,
    cache_write: float | None,
    file: Path | None,
) -> dict[str, Price]:
    from holdfast.api.model.models import Price

    if file is not None:
        wanted = _read(file)
    elif input is None and output is None:
        return {}
    elif model is None or input is None or output is None:
        raise CommandError(
            "a price needs a model, --input and --output",
            next_step="holdfast model price NAME/MODEL --input DOLLARS --output DOLLARS",
            exit=Exit.USAGE,
        )
    else:
        wanted = {model: Price(input=input, output=output, cache_read=cache_read, cache_write=cache_write)}
    for name in wanted:
        if "/" not in name:
            next_step = f"holdfast model price {name}/MODEL --input DOLLARS --output DOLLARS"
            raise CommandError(f"{name!r} names no model", next_step=next_step, exit=Exit.USAGE)
    return wanted


def _row(each: ModelPrice) -> list[Cell | str]:
    price = each.price
    more = "" if price.above is None else f", more above {price.above.tokens:,} tokens"
    return [
        Cell(each.model, "bold"),
        f"${price.input:g}",
        f"${price.output:g}",
        _dollars(price.cache_read),
        _dollars(price.cache_write),
        Cell(("set here" if each.is_own else "Holdfast") + more, "dim"),
    ]


def _dollars(number: float | None) -> Cell | str:
    return Cell("as input", "dim") if number is None else f"${number:g}"


def _read(file: Path) -> dict[str, Price]:
    from holdfast.api.document import camel_case
    from holdfast.api.model.models import Price

    try:
        listed = json.loads(file.read_text())
        listed = listed.get("prices", listed)
        return {
            name: Price.from_json({camel_case(key): value for key, value in each.items()})
            for name, each in listed.items()
        }
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}", exit=Exit.USAGE) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CommandError(
            f"{file} has no prices: {error}",
            next_step='write it as {"NAME/MODEL": {"input": 2, "output": 10}}',
            exit=Exit.USAGE,
        ) from None
