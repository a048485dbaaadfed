"""The application of the model of flows: its handler does what a file says, which deploys change.

The file has a list of verbs, each with a name. It is read when an attempt begins, as code is that
was deployed before.
"""

import json
import os
from pathlib import Path
from typing import Any

import psycopg

import forebay
from tests.support.effects import note

PROGRAM_VARIABLE = "TEST_PROGRAM"

app = forebay.App()

SOON = forebay.RetryPolicy(max_attempts=100, strategy="fixed", base_seconds=0.01, jitter=False)
NEVER = forebay.RetryPolicy(max_attempts=1)


def program() -> list[list[str]]:
    """Return the deployed program: pairs of a verb and a name."""
    return json.loads(Path(os.environ[PROGRAM_VARIABLE]).read_text())


def charge(order: int, name: str) -> str:
    note(name, order)
    return name


def bad() -> None:
    raise ValueError("not deployed well")


async def book(conn: psycopg.AsyncConnection[Any], order: int, name: str) -> str:
    await conn.execute("insert into booking (what, entry) values (%s, %s)", [name, order])
    return name


def book_here(conn: psycopg.Connection[Any], order: int, name: str) -> str:
    conn.execute("insert into booking (what, entry) values (%s, %s)", [name, order])
    return name


@app.job(queue="children", retry=SOON)
async def child(nr: int) -> int:
    return nr


@app.job(retry=SOON)
async def in_async(ctx: forebay.Context, order: int) -> None:
    for verb, name in program():
        if verb == "step":
            assert await ctx.step(name, charge, order, name) == name
        elif verb == "once":
            assert await ctx.once(name, book, order, name) == name
        elif verb == "sleep":
            await ctx.sleep(name, 0.02)
        elif verb == "wait":
            assert await ctx.wait(name, key=order) == [name, order]
        elif verb == "gather":
            assert await ctx.gather(name, child.calls(range(3)), on_dead="collect") == [0, 1, 2]
        elif verb == "each":
            async for item in ctx.each(name, range(3), key=lambda item: item):
                await ctx.once(f"{name} item", book, order, f"{name} {item}", key=item)
        else:
            await ctx.step(name, bad, retry=NEVER)
    await ctx.once("end", book, order, "end")


@app.job(retry=SOON)
def in_thread(ctx: forebay.Context, order: int) -> None:
    for verb, name in program():
        if verb == "step":
            assert ctx.step(name, charge, order, name) == name
        elif verb == "once":
            assert ctx.once(name, book_here, order, name) == name
        elif verb == "sleep":
            ctx.sleep(name, 0.02)
        elif verb == "wait":
            assert ctx.wait(name, key=order) == [name, order]
        elif verb == "gather":
            assert ctx.gather(name, child.calls(range(3)), on_dead="collect") == [0, 1, 2]
        elif verb == "each":
            for item in ctx.each(name, range(3), key=lambda item: item):
                ctx.once(f"{name} item", book_here, order, f"{name} {item}", key=item)
        else:
            ctx.step(name, bad, retry=NEVER)
    ctx.once("end", book_here, order, "end")
