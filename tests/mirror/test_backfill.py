"""Looking at many items again, chosen by a condition: each copy is right in the end."""

import psycopg

import forebay
from forebay import Rows
from forebay.mirror import QuerySource
from forebay.testing import LyingTarget, run_until_idle


def test_the_items_of_a_condition_are_looked_at_again(database):
    """
    Behind all other jobs, under a tag of their own; planned and done alike; forced ones are written even if they look right.
    """
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "create table page (id bigint primary key, version bigint, site int);"
            "insert into page select i, 1, mod(i, 10) from generate_series(1, 50) i"
        )
        app = forebay.App(database)
        target = LyingTarget()
        source = QuerySource(
            lambda: database,
            read="select id, version from page where id = any(%(ids)s)",
            scan="select id, version from page where id > coalesce(%(after)s, 0) order by id limit %(limit)s",
        )
        pages = forebay.Mirror(app, "pages", source=source, target=target)
        rows = Rows("page", equal={"site": 3})
        plan = pages.plan_backfill(rows)
        assert pages.backfill(rows, token=plan.token) == plan.jobs == 5
        found = conn.execute(
            "select distinct kind, tag, lane = forebay._lane_id('mirror', 1000, 0), expires_at is null from forebay.log"
        ).fetchall()
        assert found == [("mirror.pages", "backfill", True, False)]
        run_until_idle(app)
        assert set(target.read(range(100))) == {3, 13, 23, 33, 43}
        assert pages.backfill("select id from page", chunk=20, force=True, tag="again") == 50
        run_until_idle(app)
        assert set(target.read(range(100))) == set(range(1, 51))
        assert pages.counts["mirrored.forced"] == 50
        pages.close()
