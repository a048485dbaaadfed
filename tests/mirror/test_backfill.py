"""Looking at many items again, chosen by a condition: each copy is right in the end."""

import psycopg
import pytest

import forebay
from forebay import Rows
from forebay.errors import InvalidJob
from forebay.mirror import Drift, QuerySource, Thresholds
from forebay.testing import LyingTarget, run_until_idle


def test_the_items_of_a_condition_are_looked_at_again(database):
    """
    Behind all other jobs, under a tag of their own; planned and done alike; forced ones are written
    even if they look right.
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
            scan=(
                "select id, version from page where id > coalesce(%(after)s, 0) order by id "
                "limit %(limit)s"
            ),
        )
        pages = forebay.Mirror(app, "pages", source=source, target=target)
        rows = Rows("page", equal={"site": 3})
        plan = pages.plan_backfill(rows)
        assert pages.backfill(rows, token=plan.token) == plan.jobs == 5
        found = conn.execute(
            "select distinct kind, tag, lane = forebay._lane_id('mirror', 1000, 0), "
            "expires_at is null from forebay.log"
        ).fetchall()
        assert found == [("mirror.pages", "backfill", True, False)]
        run_until_idle(app)
        assert set(target.read(range(100))) == {3, 13, 23, 33, 43}
        assert pages.backfill("select id from page", chunk=20, force=True, tag="again") == 50
        run_until_idle(app)
        assert set(target.read(range(100))) == set(range(1, 51))
        assert pages.counts["mirrored.forced"] == 50
        pages.close()


def test_jobs_for_many_items_are_never_taken_for_changes(app, conn):
    """
    A backfill or repair that alerts would count as ordinary changes is refused: its backlog would
    be an alert, and its completed jobs would hide that no more changes come. Nothing is written.
    """
    pages = forebay.Mirror(
        app, "pages", source=LyingTarget(), target=LyingTarget(),
        thresholds=Thresholds(bulk_tags=("backfill", "renewed"), bulk_priority=500),
    )  # fmt: skip
    query = "select i as id from generate_series(1, 3) i"
    drift = Drift(missing=[1])
    for tag, priority in [("reindex.user", 100), ("backfills", 499), ("renewed-user", 100)]:
        for refused in (
            pages.backfill,
            pages.plan_backfill,
            lambda _, **options: pages.repair(drift, **options),
        ):
            with pytest.raises(InvalidJob, match="ordinary changes") as error:
                refused(query, tag=tag, priority=priority)
            assert f"'backfill.{tag}'" in error.value.hint
    assert conn.execute("select count(*) from forebay.log").fetchone() == (0,)
    for tag, priority in [("backfill.user", 100), ("renewed", 1), ("reindex.user", 500)]:
        assert pages.backfill(query, tag=tag, priority=priority) == 3
    status = pages.status()
    assert status.facts.due == 0
    assert status.facts.waiting == 9
    assert all(each.is_bulk for each in status.facts.by)
    pages.close()


def test_python_and_the_database_agree_on_what_is_bulk(conn):
    """
    What ``backfill`` accepts is what the alerts ignore.
    """
    thresholds = Thresholds()
    for tag in (None, "", "audit", "audit.x", "audits", "backfill", "backfill.", "x.backfill"):
        for priority in (0, 100, 999, 1000, 1001):
            asked = [tag, priority, list(thresholds.bulk_tags), thresholds.bulk_priority]
            found = conn.execute("select forebay._is_bulk(%s, %s, %s, %s)", asked).fetchone()
            assert found == (thresholds.is_bulk(tag, priority),), (tag, priority)
