-- Fold everything, and move the totals of a segment to those of emptied segments: its rows are about to go.
create function forebay._empty_counters(p_segment_id bigint) returns void
language plpgsql volatile
-- planner: in order
as $$
begin
    perform forebay.fold_v1(9223372036854775806, true);
    insert into forebay.counter (cell_id, segment_id, no, counted_at, totals)
    select n.cell_id, -2, coalesce(p.no, 0) + 1, n.counted_at,
           array(select coalesce(o.total, 0) + a.total
                 from unnest(p.totals) with ordinality o (total, event) right join unnest(n.totals) with ordinality a (total, event) on a.event = o.event
                 order by a.event)
    from forebay.counter_cell c
    cross join lateral (select i.* from forebay.counter i where i.cell_id = c.cell_id and i.segment_id = p_segment_id order by i.no desc limit 1) n
    left join lateral (select i.no, i.totals from forebay.counter i where i.cell_id = c.cell_id and i.segment_id = -2 order by i.no desc limit 1) p on true;
    delete from forebay.counter i where i.segment_id = p_segment_id and i.cell_id in (select c.cell_id from forebay.counter_cell c);
end
$$;


-- Delete the counters of a group.
create function forebay._delete_counters(p_group_id bigint) returns void
language sql volatile
as $$
    delete from forebay.counter_fold f where f.group_id = p_group_id;
    delete from forebay.counter i where i.cell_id in (select c.cell_id from forebay.counter_cell c where c.group_id = p_group_id);
    delete from forebay.counter_sample s where s.cell_id in (select c.cell_id from forebay.counter_cell c where c.group_id = p_group_id);
    delete from forebay.counter_cell c where c.group_id = p_group_id;
$$;


-- Delete folds but the newest of each group; totals but the newest of each cell, those of a cell in all segments after an hour; samples of
-- minutes after a week, and those of hours after a year, but the newest of these.
create function forebay._trim_counters(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_at   constant timestamptz := forebay._now();
    v_gone bigint;
begin
    delete from forebay.counter_fold f
    where f.ctid = any (array(
        select i.ctid from forebay.queue_group g
        cross join lateral (select n.no from forebay.counter_fold n where n.group_id = g.group_id order by n.no desc limit 1) n
        cross join lateral (select j.ctid from forebay.counter_fold j where j.group_id = g.group_id and j.no < n.no order by j.no desc limit p_most) i
        limit p_most));
    get diagnostics rows = row_count;
    delete from forebay.counter f
    where f.ctid = any (array(
        select i.ctid from (
            select c.cell_id, s.segment_id from forebay.counter_cell c
            cross join lateral (select -2::bigint as segment_id
                                union all select s.segment_id from forebay.segment s where s.removed_at is null) s) c
        cross join lateral (select n.no from forebay.counter n where n.cell_id = c.cell_id and n.segment_id = c.segment_id order by n.no desc limit 1) n
        cross join lateral (select j.ctid from forebay.counter j
                            where j.cell_id = c.cell_id and j.segment_id = c.segment_id and j.no < n.no order by j.no desc limit p_most) i
        limit p_most));
    get diagnostics v_gone = row_count;
    rows := rows + v_gone;
    delete from forebay.counter f
    where f.ctid = any (array(
        select i.ctid from forebay.counter i
        where i.segment_id = -1 and i.counted_at < v_at - interval '1 hour'
          and exists (select from forebay.counter n where n.cell_id = i.cell_id and n.segment_id = -1 and n.no > i.no)
        order by i.counted_at limit p_most));
    get diagnostics v_gone = row_count;
    rows := rows + v_gone;
    delete from forebay.counter_sample f
    where f.ctid = any (array(
        select i.ctid from (values ('minute', v_at - interval '7 days'), ('hour', v_at - interval '1 year')) s (step, before)
        cross join lateral (
            select j.ctid from forebay.counter_sample j
            where j.step = s.step and j.at < s.before
              and exists (select from forebay.counter_sample n where n.step = j.step and n.cell_id = j.cell_id and n.at > j.at and n.at < s.before)
            order by j.at limit p_most) i));
    get diagnostics v_gone = row_count;
    rows := rows + v_gone;
    next := case when rows >= p_most then '[]' end;
end
$$;
