"""A worker that waits for a lock, or passes over a locked task, names the session that holds it."""

import logging

import psycopg
import pytest

from forebay.db.session import Session
from forebay.worker.ground import lock_warnings
from forebay.worker.maintain.maintenance import Maintenance
from forebay.worker.process import worker
from tests.support.engine import connect, enqueue, one, open_group
from tests.support.fix_worker import running
from tests.support.least_privilege import as_login
from tests.support.waiting import wait_for_async

pytestmark = [pytest.mark.anyio, pytest.mark.direct]


@pytest.mark.usual("the worker's role sees what the sessions of other roles are")
async def test_a_claim_that_waits_for_long_names_the_session_with_the_lock(
    app, conn, database, caplog, monkeypatch
):
    """
    The warning has its process id, its application and how to end it; the claim is repeated, and
    gets the job.
    """
    monkeypatch.setattr(
        worker,
        "Session",
        lambda *args, **named: Session(*args, **(named | {"lock_timeout": "200ms"})),
    )
    monkeypatch.setattr(lock_warnings, "_HELD_SECONDS", 0.0)
    ran = []

    @app.job
    async def work() -> None:
        ran.append(1)

    group = open_group(conn, "default")
    with psycopg.connect(database, application_name="a console") as holder:
        holder.execute(
            "select forebay._lock_lane(%s, forebay._lane_id('default', 100, 0))", [group]
        )
        async with running(app):
            enqueue(conn)
            await wait_for_async(lambda: "a claim waited for a lock" in caplog.text)
            pid = holder.info.backend_pid
            assert f"pid {pid} (role postgres, a console, idle in transaction" in caplog.text
            assert "holds a lock on lock_lane_" in caplog.text
            assert f"select pg_terminate_backend({pid});" in caplog.text
            holder.rollback()
            await wait_for_async(lambda: ran)


@pytest.mark.parametrize("sees_others", [True, False])
async def test_a_locked_task_is_reported_once_though_the_task_does_not_fail(
    database, conn, caplog, sees_others
):
    """
    Promotion passes over a locked call without an error. Two passes find the same transaction, also
    without the right to see its age; a new transaction is a new warning.
    """
    caplog.set_level(logging.WARNING, "forebay.maintenance")
    session = Session(database, name="test")
    maintenance = Maintenance(session)
    if not sees_others:
        conn.execute("drop role if exists plain_worker")
        conn.execute("create role plain_worker login")
        session = Session(as_login(database, "plain_worker"), name="test")
        conn.execute("grant usage on schema forebay to plain_worker")
        maintenance = Maintenance(session)
    try:
        with connect(database) as holder:
            for warnings in (1, 2):
                holder.execute(
                    "begin; lock table only forebay.lock_promotion in share update exclusive mode"
                )
                for _ in range(3):
                    await maintenance._watch_locks(None)
                named = f"pid {holder.info.backend_pid}"
                assert [named in record.message for record in caplog.records] == [True] * warnings
                assert one(conn, "select forebay.promote_v1()") == 0
                holder.execute("rollback")
    finally:
        await session.close()
        if not sees_others:
            conn.execute("drop owned by plain_worker")
            conn.execute("drop role plain_worker")
