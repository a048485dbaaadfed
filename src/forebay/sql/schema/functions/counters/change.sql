-- Record that deferred jobs were cancelled or replaced before they were due, so that counts subtract them at once.
create function forebay._withdraw(p_job_ids bigint[], p_group_id bigint default null) returns void
language plpgsql volatile
-- planner: in order
as $$
begin
    insert into forebay.withdrawn (queue, priority, audience, group_id, state, row_xid, run_at, deferred_id, kind, tag)
    select l.queue, l.priority, l.audience, p_group_id, forebay._state_of_deferred(d.attempt, d.pauses), d.xid, d.run_at, d.deferred_id, d.kind, d.tag
    from unnest(p_job_ids) j (job_id)
    cross join lateral (select i.* from forebay.deferred i where i.job_id = j.job_id offset 0) d
    cross join lateral (select i.queue, i.priority, i.audience from forebay.lane i where i.lane = d.lane limit 1) l
    left join lateral (select p.* from forebay.promotion p order by p.no desc limit 1) p on true
    where (pg_visible_in_snapshot(d.xid, p.snap) and (d.run_at, d.deferred_id) <= (p.run_at, p.deferred_id)) is not true
      and (p_group_id is null or l.audience in (0, p_group_id, -p_group_id));
end
$$;


-- Withdraw the deferred row that this transaction has written for a job that may have been cancelled or replaced before: a claim that cannot
-- take a suspect yet, for example, does not look at its cancellation. To withdraw a row twice changes nothing.
create function forebay._withdraw_again(p_job_id bigint) returns void
language plpgsql volatile
-- planner: indexed
as $$
begin
    if pg_sequence_last_value('forebay.tombstone_seq') is not null then
        perform forebay._withdraw(array[p_job_id], t.group_id)
        from (select distinct i.group_id from forebay.tombstone i where i.job_id = p_job_id and i.reason in ('c', 'r')) t;
    end if;
end
$$;


-- Record that deferred rows were promoted or moved. Arrays belong together.
create function forebay._record_left(p_lanes bigint[], p_xids xid8[], p_states text[], p_kinds text[], p_tags text[]) returns void
language plpgsql volatile
-- planner: in order
as $$
begin
    insert into forebay.counter_change (queue, priorities, audiences, states, row_xids, jobs, kinds, tags)
    select g.queue, array_agg(g.priority), array_agg(g.audience), array_agg(g.state), array_agg(g.xid), array_agg(g.jobs), array_agg(g.kind), array_agg(g.tag)
    from (select l.queue, l.priority, l.audience, left(u.state, 1)::"char" as state, u.xid, u.kind, u.tag, sum(u.jobs)::integer as jobs
          from (select i.lane, i.xid, i.state, i.kind, i.tag, count(*) as jobs
                from unnest(p_lanes, p_xids, p_states, p_kinds, p_tags) i (lane, xid, state, kind, tag) group by 1, 2, 3, 4, 5) u
          cross join lateral (select i.queue, i.priority, i.audience from forebay.lane i where i.lane = u.lane limit 1) l
          group by 1, 2, 3, 4, 5, 6, 7) g
    group by g.queue;
end
$$;


-- Record that ready jobs of plain lanes were moved, or that the sweep has expired them: the claim that skips their rows does not count them.
create function forebay._record_skipped(p_queue text, p_group_id bigint, p_priority integer, p_jobs integer) returns void
language sql volatile
as $$
    insert into forebay.counter_change (queue, group_id, priorities, audiences, states, row_xids, jobs)
    values (p_queue, p_group_id, array[p_priority], array[0], array['w'::"char"], array['0'::xid8], array[p_jobs])
$$;


-- The same for the row of one job, of a lane of any sort, and for the counters by kind too. p_why: e expired, m moved to a newer row.
create function forebay._record_row_left(p_queue text, p_group_id bigint, p_priority integer, p_row forebay.log, p_why "char") returns void
language sql volatile
as $$
    insert into forebay.counter_change (queue, group_id, priorities, audiences, states, row_xids, jobs, kinds, tags, why, segment_id)
    select p_queue, p_group_id, array[p_priority], array[0], array[case when p_row.ordering_key is null then 'w' else 'a' end::"char"],
           array['0'::xid8], array[1], array[p_row.kind], array[p_row.tag], p_why,
           (select s.segment_id from forebay.segment s where s.lo <= p_row.seq order by s.lo desc limit 1)
$$;
