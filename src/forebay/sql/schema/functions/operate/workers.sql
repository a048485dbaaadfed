-- grant: operator, reader

-- The workers with an open lease: who they are, since when, and what they run. A worker that was
-- killed stays until its lease is revoked; `heartbeat_at` shows it. What a worker does not report
-- is null.
--
-- Columns:
--   group_name, queues, app, app_version, forebay_version, host, pid
--                 as the worker reported them with its lease
--   concurrency   slots, as set by forebay.set_concurrency(), else as the worker was started
--   memory_bytes  resident memory of its process, without child processes, at its last heartbeat;
--                 null where the system does not tell
--   running       jobs that run, at most 1,000
--   running_jobs  the first `jobs` of them, 0 to 100: `[{"job_id": 7, "kind": "send_welcome",
--                 "claimed_at": "..."}]`; the kind is null for a job that has just ended
--   processes     child processes that run its handlers; null: they run in the worker
--   stop_at, stop_by
--                 when it was asked to stop, and by whom; null: it was not
--   is_silent     its last heartbeat is older than it should be; others take its jobs when its
--                 lease has ended
--
-- Errors: JQ001 a bad number.
-- See: docs/howto/run-workers.md#see-and-change-running-workers
-- pages: 40 + 20 an open lease + 10 a listed job
create function forebay.workers(jobs integer default 5)
returns table (worker text, host text, pid integer, group_name text, queues text[], app text, app_version text,
               forebay_version text, started_at timestamptz, heartbeat_at timestamptz, concurrency integer, memory_bytes bigint,
               running integer, running_jobs jsonb, processes integer, stop_at timestamptz, stop_by text, is_silent boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
begin
    if (workers.jobs between 0 and 100) is not true then
        raise exception using errcode = 'JQ001', column = 'jobs',
            message = format('jobs is %s, not within 0 to 100', coalesce(workers.jobs::text, 'null'));
    end if;
    return query
    with leases as (
        select l.worker, array_agg(l.lease_id order by l.opened_at desc) as ids, (array_agg(l.details order by l.opened_at desc))[1] as details,
               min(l.opened_at) as opened_at, (array_agg(l order by l.opened_at desc))[1] as newest
        from forebay.lease l where l.closed_at is null group by l.worker)
    select l.worker, l.details ->> 'host', (l.details ->> 'pid')::numeric::integer, l.details ->> 'group',
           (select array_agg(q) from jsonb_array_elements_text(nullif(l.details -> 'queues', 'null')) q),
           l.details ->> 'app', l.details ->> 'app_version', l.details ->> 'version',
           coalesce((l.details ->> 'started_at')::timestamptz, l.opened_at), h.heartbeat_at,
           coalesce(s.concurrency, (l.details ->> 'concurrency')::numeric::integer), h.memory_kb * 1024::bigint,
           coalesce(cardinality(h.running_jobs), 0), coalesce(j.list, '[]'), (l.details ->> 'processes')::numeric::integer,
           s.stop_at, s.stop_by,
           coalesce(forebay._now() - h.heartbeat_at > make_interval(secs => forebay._silent_after(l.newest, h.running_jobs)), false)
    from leases l
    left join lateral (select b.heartbeat_at, b.running_jobs, b.memory_kb
                       from unnest(l.ids) i (lease_id)
                       cross join lateral (select n.* from forebay.heartbeat n where n.lease_id = i.lease_id
                                           order by n.heartbeat_at desc limit 1) b
                       order by b.heartbeat_at desc limit 1) h on true
    left join forebay.worker_setting s on s.worker = l.worker
    left join lateral (
        select jsonb_agg(jsonb_build_object('job_id', r.job_id, 'kind', r.kind, 'claimed_at', r.claimed_at) order by r.nr) as list
        from (select u.job_id, u.nr, f.kind, f.claimed_at
              from unnest(h.running_jobs) with ordinality u (job_id, nr)
              left join forebay._claimed_jobs(l.ids, h.running_jobs[1:workers.jobs]) f on f.job_id = u.job_id
              where u.nr <= workers.jobs) r) j on true
    order by l.worker;
end
$$;


-- The kinds of some jobs that leases hold, and when they were claimed. It looks at no more than 200 jobs of a worker: first at those
-- whose row has the number of the job.
create function forebay._claimed_jobs(p_lease_ids bigint[], p_job_ids bigint[])
returns table (job_id bigint, kind text, claimed_at timestamptz)
language sql stable
as $$
    select distinct on (r.job_id) r.job_id, r.kind, c.claimed_at
    from (select b.claimed_at, coalesce(b.lanes[u.nr], b.lane) as lane, coalesce(b.xids[u.nr], b.xids[1]) as xid, u.seq
          from unnest(p_lease_ids) l (lease_id)
          cross join lateral (select i.floor from forebay.batch i where i.lease_id = l.lease_id order by i.claim_no desc limit 1) f
          join forebay.batch b on b.lease_id = l.lease_id and b.claim_no >= f.floor
          cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
          where cardinality(p_job_ids) > 0
          order by u.seq = any (p_job_ids) desc, b.claim_no desc
          limit 200) c
    cross join lateral (select coalesce(o.job_id, o.seq) as job_id, o.kind from forebay._row(c.lane, c.xid, c.seq) o) r
    where r.job_id = any (p_job_ids)
    order by r.job_id, c.claimed_at desc
$$;
