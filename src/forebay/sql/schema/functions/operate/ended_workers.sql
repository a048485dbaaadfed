-- grant: operator, reader

-- The workers whose lease has ended, the newest first, 1 to 1000: how they ended, and what became
-- of what they ran. They are kept for `retention_days`, at least a day.
--
-- Columns:
--   how           `stopped`: by itself; `crashed`: by `signal`, as the process that had started it
--                 reported; `lost`: silent for so long that its jobs went to others; `adopted`: by
--                 forebay.adopt() after a restore
--   is_back       a worker of that name has an open lease: the process was frozen or cut off
--   heartbeat_at  the last sign of life
--   jobs          how many jobs it held at its end; 0 for one that stopped in time
--   used_attempt  how many of them have used an attempt, each with an error; all others were
--                 returned as if they had not been claimed
--   kinds         the kinds of these jobs with their numbers, at most 20 kinds
--   job_ids       the first 20 of them, those first that ran at the last heartbeat
--   stop_by       who had requested it to stop, by forebay.stop_workers(); null: no operator
--
-- Errors: JQ001 a bad number.
-- See: docs/howto/run-workers.md#see-what-became-of-workers-that-ended
-- pages: 40 + 10 an ended lease
create function forebay.ended_workers(since timestamptz default null, most integer default 50)
returns table (worker text, how text, signal integer, is_back boolean, host text, pid integer, group_name text, queues text[], app text,
               app_version text, started_at timestamptz, heartbeat_at timestamptz, ended_at timestamptz, jobs integer, used_attempt integer,
               kinds jsonb, job_ids bigint[], stop_by text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
begin
    if (ended_workers.most between 1 and 1000) is not true then
        raise exception using errcode = 'JQ001', column = 'most',
            message = format('most is %s, not within 1 to 1000', coalesce(ended_workers.most::text, 'null'));
    end if;
    return query
    select l.worker, case when l.signal is not null then 'crashed' when l.closed_as = 'revoked' then 'lost'
                          when l.closed_as = 'adopted' then 'adopted' else 'stopped' end,
           l.signal, exists (select from forebay.lease o where o.closed_at is null and o.worker = l.worker),
           l.details ->> 'host', (l.details ->> 'pid')::numeric::integer, l.details ->> 'group',
           (select array_agg(q) from jsonb_array_elements_text(nullif(l.details -> 'queues', 'null')) q), l.details ->> 'app', l.details ->> 'app_version',
           coalesce((l.details ->> 'started_at')::timestamptz, l.opened_at), l.alive_at, l.closed_at,
           coalesce((l.held ->> 'jobs')::integer, 0), coalesce((l.held ->> 'used_attempt')::integer, 0), coalesce(l.held -> 'kinds', '{}'),
           coalesce((select array_agg(i::bigint) from jsonb_array_elements_text(l.held -> 'job_ids') i), '{}'), l.stop_by
    from forebay.lease l
    where l.closed_at is not null and l.closed_at >= coalesce(ended_workers.since, forebay._now() - interval '1 day') and l.closed_as <> 'retired'
    order by l.closed_at desc, l.lease_id desc
    limit ended_workers.most;
end
$$;
