"""The client's calls on a connection whose search_path finds other operators first."""

import psycopg
import pytest

import forebay
from forebay.db.drivers import run
from forebay.ops.overview import known_names, queue_overview
from tests.support.engine import connect, one, state
from tests.support.fix_worker import run_until_idle

pytestmark = pytest.mark.anyio

#: Each operator of the catalog for the types that the statements of the library have, with the same
#: arguments: it fails.
_EVIL = """
create schema shadows;
do $do$
declare o record;
begin
    for o in
        select i.oprname, i.oprleft::regtype as l, i.oprright::regtype as r
        from pg_operator i
        where i.oprnamespace = 'pg_catalog'::regnamespace and i.oprleft <> 0
          and array[i.oprleft, i.oprright]::regtype[] <@ array[
              'text', 'integer', 'bigint', 'smallint', 'double precision', 'numeric', 'boolean',
              'jsonb', 'json', 'timestamptz', 'interval', 'text[]', '"char"', 'name',
              'oid']::regtype[]
    loop
        execute format('create or replace function shadows.fail(%s, %s) returns boolean'
                       ' language plpgsql as $$ begin raise ''evil''; end $$', o.l, o.r);
        execute format('create operator shadows.%s (leftarg = %s, rightarg = %s,'
                       ' function = shadows.fail)', o.oprname, o.l, o.r);
    end loop;
end $do$
"""

CALLS = {
    "alerts": lambda client, conn, job: client.alerts(conn=conn),
    "dead letter": lambda client, conn, job: client.dead_letter(
        one(conn, "select max(dead_id) from forebay.dead_letter"), conn=conn
    ),
    "dead letters": lambda client, conn, job: client.dead_letters(
        queue="default", kind="dies", reason="exhausted", tag="t", redriven=False, conn=conn
    ),
    "depth": lambda client, conn, job: client.depth(conn=conn),
    "event": lambda client, conn, job: client.events(conn=conn),
    "explain": lambda client, conn, job: client.explain(job, conn=conn),
    "exports": lambda client, conn, job: client.exports(conn=conn),
    "export of a search": lambda client, conn, job: client.find_to_export(
        forebay.JobFilter(queue="default"), conn=conn
    ),
    "flow": lambda client, conn, job: client.flow(job, conn=conn),
    "groups": lambda client, conn, job: client.groups(conn=conn),
    "history": lambda client, conn, job: client.job_history(job, conn=conn),
    "job": lambda client, conn, job: client.job(job, conn=conn),
    "jobs": lambda client, conn, job: client.jobs(conn=conn),
    "jobs of a search": lambda client, conn, job: client.search_jobs(
        forebay.JobFilter(queue="default"), conn=conn
    ),
    "keys": lambda client, conn, job: client.keys(conn=conn),
    "key": lambda client, conn, job: client.key("default", ordering_key="k", conn=conn),
    "limits": lambda client, conn, job: client.limits(conn=conn),
    "pause until": lambda client, conn, job: client.pause_queue("other", for_=60, conn=conn),
    "schedules": lambda client, conn, job: client.schedules(conn=conn),
    "settings": lambda client, conn, job: client.settings(conn=conn),
    "stats": lambda client, conn, job: client.stats(conn=conn),
    "subjects": lambda client, conn, job: client.subjects("default", conn=conn),
    "where": lambda client, conn, job: client.where(job, conn=conn),
    "workers": lambda client, conn, job: client.workers(conn=conn),
}


async def test_other_operators_change_no_call(app, conn, database):
    """
    Whatever schema stands first: calls that need an operator name that of the catalog.
    """

    @app.job()
    async def waits(ctx: forebay.Context) -> None:
        await ctx.step("one", int)
        await ctx.wait("approval")

    @app.job(retry=forebay.RetryPolicy(max_attempts=1))
    async def dies() -> None:
        raise ValueError

    job = waits.enqueue(conn)
    dies.using(tag="t").enqueue(conn)
    await run_until_idle(app)
    client = forebay.Client(database)
    with connect(database) as other:
        other.execute(_EVIL)
        other.execute("set search_path = shadows, pg_catalog")
        with pytest.raises(psycopg.Error, match="evil"):
            other.execute("select '{}'::jsonb || '{}'::jsonb")
        broken = {}
        for name, read in CALLS.items():
            try:
                read(client, other, job)
            except psycopg.Error as error:
                broken[name] = str(error)
        assert broken == {}
        run(other, queue_overview())
        run(other, known_names())
        later = waits.using(delay=60, expires_in=60).enqueue(other)
    assert state(conn, later) == "scheduled"
