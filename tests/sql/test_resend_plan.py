"""What it costs to send lost messages again."""

from tests.support.engine import connect, enqueue_many, one, open_group

JOBS = 6000


def searches(conn) -> int:
    """Return how often a block index of the log was searched."""
    conn.execute("select pg_stat_force_next_flush()")
    return one(
        conn,
        "select coalesce(sum(s.idx_scan), 0)::bigint from pg_stat_user_indexes s "
        "join pg_class c on c.oid = s.indexrelid join pg_am a on a.oid = c.relam "
        "where a.amname = 'brin' and s.relname like 'log%%'",
    )


def test_numbers_near_each_other_are_read_together(database):
    """Not each with its own search of the index: thousands of lost messages are no rare audit."""
    with connect(database) as conn:
        group = open_group(conn, "mail")
        enqueue_many(conn, [{"kind": "work", "args": {}, "queue": "mail"} for _ in range(JOBS)])
        ids, times = conn.execute(
            "select array_agg(seq), array_agg(enqueued_at) from forebay.log where seq % 3 = 0"
        ).fetchone()
        conn.execute(
            "insert into forebay.result (job_id, group_id, enqueued_at, kept_at, kept_until, value)"
            " select i, %s, t, now(), now() + interval '1 hour', '{\"proof\": 1}'"
            " from unnest(%s::bigint[], %s::timestamptz[]) u (i, t)",
            [group, ids, times],
        )
        before = searches(conn)
        resend = "select forebay.resend_v1('d', 'mail', 'default', %s::bigint[], %s::timestamptz[])"
        assert one(conn, resend, ids, times) == len(ids) >= JOBS // 3 - 1
        assert searches(conn) - before <= JOBS / 1024 + 10
        assert one(conn, resend, ids, times) == 0, "sent again once"
