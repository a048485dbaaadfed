-- grant: operator, reader

-- The counters of jobs over time: a row for each step in which something changed. What was appended
-- in the last seconds is not there yet.
--
-- Parameters:
--   step          `second` (kept for an hour), `minute` (a week) or `hour` (a year)
--   since, until  from and up to this time; null: all that is kept
--
-- Columns:
--   at  the end of the step
--   scheduled, ready, claimed, retrying
--       jobs then; the other columns count what happened since the row before
--
-- Errors: JQ001 an unknown step.
-- See: docs/howto/stats.md
create function forebay.stats_series(
    step text, since timestamptz default null, until timestamptz default null, only_queue text default null)
returns table (at timestamptz, queue text, group_name text, priority integer, kind text, tag text, scheduled bigint, ready bigint, claimed bigint,
               retrying bigint, enqueued bigint, handed bigint, done bigint, failed bigint, dead bigint, expired bigint, cancelled bigint, snoozed bigint,
               released bigint, lost bigint, requeued bigint, wait_ms bigint, duration_ms bigint, waits bigint[], durations bigint[])
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_since constant timestamptz := coalesce(since, '-infinity');
    v_until constant timestamptz := coalesce(until, 'infinity');
begin
    if (stats_series.step in ('second', 'minute', 'hour')) is not true then
        raise exception using errcode = 'JQ001', message = format('there is no step %s', coalesce(quote_literal(left(stats_series.step, 40)), 'null')),
            hint = 'One of second, minute, hour.';
    end if;
    return query
    with sample as (
        select i.cell_id, date_trunc('second', i.counted_at) as at, i.totals as t, case when i.no = 1 then '{}' else p.totals end as before
        from (select distinct on (j.cell_id, date_trunc('second', j.counted_at)) j.*
              from forebay.counter j
              where stats_series.step = 'second' and j.segment_id = -1 and j.counted_at >= v_since and j.counted_at <= v_until
              order by j.cell_id, date_trunc('second', j.counted_at), j.no desc) i
        left join lateral (select n.totals from forebay.counter n
                           where n.cell_id = i.cell_id and n.segment_id = -1 and n.no < i.no and n.counted_at < date_trunc('second', i.counted_at)
                           order by n.no desc limit 1) p on true
        union all
        select i.cell_id, i.at, i.totals, coalesce(p.totals, '{}')
        from (select j.cell_id, j.at, j.totals from forebay.counter_sample j where j.step = stats_series.step and j.at >= v_since and j.at <= v_until
              union all
              -- The present minute or hour.
              select c.cell_id, n.counted_at, n.totals
              from forebay.counter_cell c
              cross join lateral (select j.counted_at, j.totals from forebay.counter j where j.cell_id = c.cell_id and j.segment_id = -1 order by j.no desc limit 1) n
              where stats_series.step <> 'second' and n.counted_at between v_since and v_until
                and n.counted_at > coalesce((select j.at from forebay.counter_sample j where j.step = stats_series.step order by j.at desc limit 1), '-infinity')) i
        left join lateral (select j.totals from forebay.counter_sample j
                           where j.step = stats_series.step and j.cell_id = i.cell_id and j.at < i.at order by j.at desc limit 1) p on true
    )
    select s.at, c.queue, coalesce(g.name, 'default'), c.priority, c.kind, c.tag,
           s.t[15], s.t[1] + s.t[13] - s.t[3] - s.t[7] - s.t[8] - s.t[14],
           s.t[3] - s.t[4] - s.t[5] - s.t[6] - s.t[9] - s.t[10] - s.t[11] - s.t[12] - s.t[13], s.t[16],
           d.d[2], d.d[3], d.d[4], d.d[5], d.d[6], d.d[7], d.d[8] + d.d[9], d.d[10], d.d[11], d.d[12], d.d[13], d.d[17], d.d[58], d.d[18:37], d.d[38:57]
    from sample s
    join forebay.counter_cell c on c.cell_id = s.cell_id
    left join forebay.queue_group g on g.group_id = c.group_id
    cross join lateral (select array(select a.total - case when s.before is null then a.total else coalesce(s.before[a.event], 0) end
                                     from unnest(s.t) with ordinality a (total, event) order by a.event) as d) d
    where only_queue is null or c.queue = only_queue
    order by s.at, c.queue, 3, c.priority, c.kind, c.tag;
end
$$;
