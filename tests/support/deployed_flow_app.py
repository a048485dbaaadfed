"""An application that is deployed in five versions, whose flow has other steps in each.

The second has one more step, the third one less, the fourth gives one another name, and the last
has two in another order. The name that a step gets later is known to the version before, since
workers of both run at once.
"""

import os
from typing import Any

import psycopg

import forebay
from tests.support.effects import note

VERSION = int(os.environ.get("DEPLOYED", "0"))

app = forebay.App()

SOON = forebay.RetryPolicy(max_attempts=50, strategy="fixed", base_seconds=0.01, jitter=False)


def reserve(order: int) -> int:
    note("reserve", order)
    return order


def price(order: int) -> None:
    note("price", order)


def check(order: int) -> None:
    note("check", order)


async def book(conn: psycopg.AsyncConnection[Any], order: int, what: str) -> None:
    await conn.execute("insert into booking (what, entry) values (%s, %s)", [what, order])


@app.job(retry=SOON)
async def fulfil(ctx: forebay.Context, order: int) -> None:
    async def deployed(nr: int) -> None:
        await ctx.wait("deployed", key=f"{order} {nr}", step_key=nr)

    if VERSION < 2:
        held = await ctx.step("reserve", reserve, order)
    elif VERSION == 2:
        held = await ctx.step("reserve", reserve, order, also=["hold"])
    else:
        held = await ctx.step("hold", reserve, order, also=["reserve"])
    assert held == order
    if VERSION < 2:
        await ctx.step("price", price, order)
    await deployed(1)
    if VERSION >= 1:
        await ctx.step("check", check, order)
    await deployed(2)
    await deployed(3)
    if VERSION < 4:
        await ctx.once("book", book, order, "book")
        await deployed(4)
        await ctx.once("charge", book, order, "charge")
    else:
        await ctx.once("charge", book, order, "charge")
        await deployed(4)
        await ctx.once("book", book, order, "book")
    await ctx.once("end", book, order, f"ended by version {VERSION}")
