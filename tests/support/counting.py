"""Counters of the past, for the curves of a queue."""

import psycopg

from tests.support.engine import enqueue, one


def count_each_minute(conn: psycopg.Connection, queue: str, minutes: int) -> None:
    """Give a queue a waiting job, and counters of each of the last minutes, as folds leave them."""
    enqueue(conn, queue=queue)
    group = one(conn, "select forebay.open_group(%s, 'default')", queue)
    cell = one(
        conn,
        "insert into forebay.counter_cell (group_id, queue, priority, kind)"
        " values (%s, %s, 100, 'work') returning cell_id",
        group,
        queue,
    )
    conn.execute(
        "insert into forebay.counter_sample (step, cell_id, at, totals)"
        " select 'minute', %s, clock_timestamp() - make_interval(mins => m),"
        " array_fill(%s - m, array[58]) from generate_series(1, %s) m",
        [cell, minutes + 10, minutes],
    )
