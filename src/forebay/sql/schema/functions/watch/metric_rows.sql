-- grant: operator, reader, worker

-- The numbers of forebay.measurements() as rows, for a dashboard that reads SQL.
--
-- Parameters: as of forebay.measurements()
--
-- Columns:
--   name    the part and the member, such as `queues.ready`, `counters.done`, `database.dead_rows`
--   value   the number; of a truth value 1 or 0; of `endpoints.breaker` 0 closed, 1 half-open,
--           2 open. Names that end with `_at`, and `since`, are seconds since 1970
--   labels  an object of texts: what the number is of, such as `queue`, `group`, `kind`, `endpoint`
--   type    `counter`, a total that only grows, or `gauge`
--
-- Numbers that are not known are left out. The histograms stay in forebay.measurements().
--
-- Errors: JQ001 a bad number.
-- Transaction: the caller's; reads only.
-- See: docs/howto/monitoring.md
create function forebay.metric_rows(within_seconds double precision default 900, with_counters boolean default true)
returns table (name text, value double precision, labels jsonb, type text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
    with measured as materialized (
        select forebay.measurements(metric_rows.within_seconds, metric_rows.with_counters) as m),
    part as (
        select p.key as name, p.value from measured, jsonb_each(m - 'counters') p
        union all
        select 'counters', m #> '{counters,cells}' from measured
        union all
        select p.key, p.value from measured, jsonb_each(m -> 'database') p where jsonb_typeof(p.value) = 'array'),
    item as (
        select p.name, i.value
        from part p
        cross join lateral jsonb_array_elements(case jsonb_typeof(p.value) when 'array' then p.value when 'object' then jsonb_build_array(p.value)
                                                else '[]' end) i)
    select i.name || '.' || e.key,
           case jsonb_typeof(e.value) when 'number' then (e.value #>> '{}')::double precision when 'boolean' then (e.value = 'true')::integer
                else array_position(array['closed', 'half-open', 'open'], e.value #>> '{}') - 1 end,
           l.labels,
           case when i.name = 'counters' and e.key <> 'counted_at' or (i.name, e.key) in (('queues', 'claims'), ('database', 'numbers_drawn'))
                then 'counter' else 'gauge' end
    from item i
    cross join lateral (
        select coalesce(jsonb_object_agg(m.key, m.value), '{}') as labels from jsonb_each(i.value) m
        where jsonb_typeof(m.value) = 'string'
          and m.key in ('queue', 'group', 'kind', 'tag', 'reason', 'worker', 'app', 'endpoint', 'mirror', 'schedule', 'state', 'export', 'duty', 'code',
                        'subject', 'severity', 'name')) l
    cross join lateral jsonb_each(i.value) e
    where jsonb_typeof(e.value) in ('number', 'boolean') or (i.name, e.key) = ('endpoints', 'breaker')
    union all
    select p.name, (p.value #>> '{}')::double precision, '{}', 'gauge' from part p where jsonb_typeof(p.value) = 'number'
$$;
