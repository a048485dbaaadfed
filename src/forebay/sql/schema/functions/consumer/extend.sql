-- grant: worker

-- Say that the worker is alive: its jobs are its own for another length of its lease. Call it three
-- times in this length while jobs run. Returns one row.
--
-- Parameters:
--   worker  the token of forebay.enter()
--
-- Columns:
--   lease_until  until then
--   cancelled    tokens of its jobs whose cancellation is requested: stop them, then call
--                forebay.release() or forebay.failed(), which end them as cancelled
--
-- Errors: JQ001 no token of a worker, JQ010 the lease has ended, and the jobs are lost.
-- Transaction: any; meant to be autocommitted. Commits asynchronously.
-- See: docs/howto/workers-in-other-languages.md
-- pages: 80 + 15 a job
create function forebay.extend(worker text, out lease_until timestamptz, out cancelled text[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_lease   constant bigint := forebay._lease_of(extend.worker);
    v_seconds double precision;
begin
    perform set_config('synchronous_commit', 'off', true);
    select l.lease_seconds into v_seconds from forebay.lease l where l.lease_id = v_lease and l.closed_at is null;
    if not found then
        perform forebay._refuse_ended(extend.worker, v_lease);
    end if;
    insert into forebay.heartbeat (lease_id, heartbeat_at, backend_pid, running_jobs)
    values (v_lease, forebay._now(), pg_backend_pid(), forebay._held_jobs(v_lease))
    returning heartbeat_at + make_interval(secs => v_seconds) into lease_until;
    cancelled := '{}';
    if pg_sequence_last_value('forebay.tombstone_seq') is not null then
        cancelled := array(
            select format('%s-%s-%s%s', v_lease, h.claim_no, h.place, case when h.headers ? 'forebay-subject' then 's' end)
            from forebay._held_places(v_lease) h
            where exists (select from forebay.tombstone t
                          where t.job_id = h.job_id and t.reason = 'c' and (t.group_id is null or t.group_id = h.group_id)) order by h.claim_no, h.place);
    end if;
end
$$;


-- End to work: the lease is closed, and jobs that the worker still has are ready again, without
-- using an attempt. Returns how many; null if the lease had ended before.
--
-- Parameters:
--   worker  the token of forebay.enter()
--
-- Errors: JQ001 no token of a worker; 55P03 after 2 s, if an open transaction holds a settlement of
--   one of its jobs.
-- Transaction: any; meant to be autocommitted.
-- Locks: the lease (UPDATE).
-- See: docs/howto/workers-in-other-languages.md
-- pages: 100 + 45 a job
create function forebay.leave(worker text) returns bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$ select forebay.close_lease_v1(forebay._lease_of(leave.worker)) $$;
