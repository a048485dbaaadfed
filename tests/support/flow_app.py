"""The application of the tests that kill workers in the middle of flows."""

from typing import Any

import psycopg

import forebay
from tests.support.effects import note

app = forebay.App()

SOON = forebay.RetryPolicy(max_attempts=50, strategy="fixed", base_seconds=0.01, jitter=False)


def charge(order: int) -> int:
    """Do something outside, which a test counts."""
    note("charge", order)
    return order * 2


def book(conn: psycopg.Connection[Any], order: int, what: str) -> str:
    """Do something in this database, which a test counts."""
    conn.execute("insert into booking (what, entry) values (%s, %s)", [what, order])
    return what


async def abook(conn: psycopg.AsyncConnection[Any], order: int, what: str) -> str:
    """Do as ``book``, asynchronously."""
    await conn.execute("insert into booking (what, entry) values (%s, %s)", [what, order])
    return what


@app.job(queue="labels", retry=SOON)
async def label(order: int, nr: int) -> int:
    note("label", order)
    return nr


@app.job(retry=SOON)
async def in_async(ctx: forebay.Context, order: int) -> None:
    note("attempt", order)
    paid = await ctx.step("charge", charge, order)
    await ctx.once("book", abook, order, "book")
    await ctx.sleep("cooling off", 0.05)
    answer = await ctx.wait("approval", key=order)
    labels = await ctx.gather("labels", label.calls((order, nr) for nr in range(3)))
    async for line in ctx.each("lines", range(3), key=lambda line: line):
        await ctx.once("line", abook, order, f"line {line}", key=line)
    assert (paid, answer, labels) == (order * 2, {"for": order}, [0, 1, 2])
    await ctx.once("end", abook, order, "end")


@app.job(retry=SOON)
def in_thread(ctx: forebay.Context, order: int) -> None:
    note("attempt", order)
    paid = ctx.step("charge", charge, order)
    ctx.once("book", book, order, "book")
    ctx.sleep("cooling off", 0.05)
    answer = ctx.wait("approval", key=order)
    labels = ctx.gather("labels", label.calls((order, nr) for nr in range(3)))
    for line in ctx.each("lines", range(3), key=lambda line: line):
        ctx.once("line", book, order, f"line {line}", key=line)
    assert (paid, answer, labels) == (order * 2, {"for": order}, [0, 1, 2])
    ctx.once("end", book, order, "end")


@app.job(retry=SOON, executor="process")
def in_process(ctx: forebay.Context, order: int) -> None:
    in_thread(ctx, order)


@app.job(retry=SOON)
async def sum_plainly(ctx: forebay.Context, order: int, results: list[int]) -> None:
    await ctx.once("sum", abook, order, str(sum(results)))


@app.job(retry=SOON, executor="process")
def sum_in_process(ctx: forebay.Context, order: int, results: list[int]) -> None:
    ctx.once("sum", book, order, str(sum(results)))


@app.job(retry=SOON, transaction=True)
def sum_in_transaction(ctx: forebay.TransactionContext, order: int, results: list[int]) -> None:
    book(ctx.conn, order, str(sum(results)))
