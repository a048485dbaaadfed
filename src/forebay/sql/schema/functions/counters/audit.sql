-- grant: operator, reader

-- Compare forebay.stats() with a full count over the view `forebay.counted_row`, in one snapshot.
-- It reads every job: seconds for each million.
--
-- Columns:
--   equal        whether all numbers agree
--   counted      how many rows and ends of jobs were counted
--   differences  null, or an array of at most 100 objects: `{"queue", "group", "priority", "kind",
--                "tag", "state", "stats", "counted"}`
create function forebay.audit_stats(only_queue text default null, out equal boolean, out counted bigint, out differences jsonb)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
    with shown as materialized (
        select s.* from forebay.stats(only_queue) s
    ), by_stats as (
        select s.queue, s.group_name, s.priority, s.kind, s.tag, u.state, u.jobs
        from shown s
        cross join lateral (values
            ('scheduled', s.scheduled), ('ready', s.ready), ('claimed', s.claimed), ('retrying', s.retrying), ('done', s.done), ('failed', s.failed),
            ('dead', s.dead), ('expired', s.expired), ('cancelled', s.cancelled), ('snoozed', s.snoozed), ('released', s.released), ('lost', s.lost),
            ('requeued', s.requeued)) u (state, jobs)
        where u.jobs <> 0
    ), rows_found as materialized (
        select r.queue, r.group_name, r.priority, r.kind, r.tag, r.state, sum(r.jobs) as jobs
        from forebay.counted_row r
        where only_queue is null or r.queue = only_queue
        group by 1, 2, 3, 4, 5, 6
    ), by_rows as (
        -- Kinds and tags beyond the most cells are shown together.
        select r.queue, r.group_name, r.priority, case when o.is_shown then r.kind else '' end as kind, case when o.is_shown then r.tag end as tag, r.state, sum(r.jobs) as jobs
        from rows_found r
        cross join lateral (
            select exists (select from shown s where s.queue = r.queue and s.group_name = r.group_name and s.priority = r.priority and s.kind = r.kind
                                                 and s.tag is not distinct from r.tag)
                   or not exists (select from shown s where s.queue = r.queue and s.group_name = r.group_name and s.priority = r.priority and s.kind = '') as is_shown) o
        where r.state not in ('moved', 'withdrawn')
        group by 1, 2, 3, 4, 5, 6
    ), different as (
        select coalesce(a.queue, b.queue) as queue, coalesce(a.group_name, b.group_name) as "group", coalesce(a.priority, b.priority) as priority,
               coalesce(a.kind, b.kind) as kind, coalesce(a.tag, b.tag) as tag, coalesce(a.state, b.state) as state,
               coalesce(a.jobs, 0) as stats, coalesce(b.jobs, 0) as counted
        from by_stats a
        full join by_rows b on a.queue = b.queue and a.group_name = b.group_name and a.priority = b.priority and a.kind = b.kind
                               and coalesce(a.tag, '') = coalesce(b.tag, '') and (a.tag is null) = (b.tag is null) and a.state = b.state
        where a.jobs is distinct from b.jobs
    )
    select not exists (select from different), (select coalesce(sum(r.jobs), 0)::bigint from rows_found r),
           (select jsonb_agg(d) from (select i.* from different i order by 1, 2, 3, 4, 5, 6 limit 100) d)
$$;
