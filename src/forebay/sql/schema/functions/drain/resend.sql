-- grant: worker

-- Send lost messages again. For each job whose proof is there, it makes a new job of the group with
-- the same contents, deletes the proof, and counts a loss of the drain. Returns how many. The new
-- job keeps queue, priority, tag, correlation id, headers, keys and `max_attempts`; its expiry
-- begins again. A job whose row was erased or is no longer in the log keeps its proof and
-- is not counted. The act
-- `drains.resend` is in the event log.
--
-- Parameters:
--   p_drain                   the drain whose counters get the losses
--   p_job_ids, p_enqueued_at  which belong together, at most 10000
--
-- Errors: JQ001 more than 10,000 jobs; JQ014 no such group, or a closed one.
-- Locks: the proofs' rows, and the group's row (SHARE).
--
-- Inside: Invariant "sent again once": the proof is deleted in the same transaction, so a second
-- audit does not find the message.
-- pages: 300 + 200 a job + 1000 a segment
create function forebay.resend_v1(
    p_drain text, p_queue text, p_group_name text, p_job_ids bigint[], p_enqueued_at timestamptz[])
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_group_id bigint;
    v_segment  record;
    v_rows     forebay.log[];
    v_resent   integer := 0;
begin
    if cardinality(p_job_ids) > 10000 then
        raise exception using errcode = 'JQ001', message = format('%s jobs are more than 10000', cardinality(p_job_ids));
    end if;
    perform forebay._require_group(p_queue, p_group_name);
    select g.group_id into v_group_id from forebay.queue_group g
    where g.queue = p_queue and g.name = p_group_name and g.closing_at is null for share;
    if not found then
        raise exception using errcode = 'JQ014', message = format('group %s of queue %s was closed', p_group_name, p_queue);
    end if;
    for v_segment in
        select s.segment_id, s.lo, s.hi from forebay.segment s
        where s.hi > (select min(u) from unnest(p_job_ids) u) and s.removed_at is null
          and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and forebay._has_table(s.segment_id)
        order by s.segment_id
    loop
        -- The first row of each job; a job that was delayed has its id beside another number. Numbers near each other are read together, and
        -- seq + 0 keeps the block index from being searched once for each number.
        execute format(
            'select array_agg(f.row order by (f.row).seq)
             from (select distinct on (coalesce(l.job_id, l.seq)) l as row
                   from (select i.*
                         from (select array_agg(u) as seqs, min(u) as low, max(u) as high
                               from unnest($1) u where u >= $3 and u < $4 group by u / 1024) b
                         cross join lateral (
                             select j.* from forebay.log_%1$s j
                             where j.seq >= b.low and j.seq <= b.high and j.seq + 0 = any (b.seqs) and j.job_id is null and j.kind <> ''''
                               and not coalesce(j.headers ? ''forebay-redacted'', false)
                             offset 0) i
                         union all
                         select i.* from forebay.log_%1$s i where i.job_id = any ($1) and not coalesce(i.headers ? ''forebay-redacted'', false)) l
                   join unnest($1, $2) u (job_id, enqueued_at) on u.job_id = coalesce(l.job_id, l.seq) and u.enqueued_at = l.enqueued_at
                   order by coalesce(l.job_id, l.seq), l.seq) f', v_segment.segment_id)
        into v_rows
        using p_job_ids, p_enqueued_at, v_segment.lo, v_segment.hi;
        continue when v_rows is null;
        with gone as materialized (
            delete from forebay.result r
            using unnest(v_rows) l
            where r.job_id = coalesce(l.job_id, l.seq) and r.group_id = v_group_id and r.enqueued_at = l.enqueued_at and r.value ? 'proof'
            returning r.job_id
        ), lost as materialized (
            select l.*, i.priority
            from unnest(v_rows) l
            cross join lateral (select n.priority from forebay.lane n where n.lane = l.lane limit 1) i
            where coalesce(l.job_id, l.seq) in (select g.job_id from gone g)
        ), target as materialized (
            select t.*, forebay._record_private_lane(p_queue, t.priority, v_group_id, case when t.is_keyed then '' end,
                                                     case when t.is_limited then '' end) as lane
            from (select distinct l.priority, l.ordering_key is not null as is_keyed, l.limit_key is not null as is_limited from lost l) t
        ), written as (
            insert into forebay.log (lane, enqueued_at, {job})
            select t.lane, forebay._now(), {job of l}
            from lost l
            join target t on t.priority = l.priority and t.is_keyed = (l.ordering_key is not null) and t.is_limited = (l.limit_key is not null)
            order by l.seq
            returning 1
        )
        select v_resent + count(*) into v_resent from written;
    end loop;
    if v_resent > 0 then
        perform forebay._notify(p_queue);
        perform forebay._record_counters(
            jsonb_build_object('mirror', 'drain.' || p_drain, 'counts', jsonb_build_array(jsonb_build_array('lost', null, null, v_resent))), session_user);
        perform forebay._record_event('drains.resend', p_queue, p_group_name, p_count => v_resent, p_detail => p_drain);
    end if;
    return v_resent;
end
$$;
