-- Notices on channel forebay_events, of the queues in forebay.queue_notices. See docs/design/engine.md#notices.

-- Send a notice when this transaction commits.
--
-- Invariant "bounded": after 20 notices of a transaction the others are sent without numbers, and PostgreSQL sends equal ones once. The
-- caller's session may set the parameter that counts them: it can make its own notices shorter, or up to 20 more.
--
-- Parameters: p_facts, names and words; p_count, how many jobs, null: one or more; p_jobs, their ids, left out of a longer list than 100.
create function forebay._send_notice(p_facts jsonb, p_count bigint default null, p_jobs bigint[] default null) returns void
language plpgsql volatile
as $$
declare
    v_sent  constant integer := coalesce(substring(current_setting('forebay.notices', true) from '^[0-9]{1,4}$')::integer, 0);
    v_facts jsonb := jsonb_strip_nulls(p_facts);
begin
    if not forebay._may_notify() then
        return;
    end if;
    if v_sent < 20 and p_count is not null then
        perform set_config('forebay.notices', (v_sent + 1)::text, true);
        v_facts := v_facts || jsonb_strip_nulls(jsonb_build_object(
            'count', p_count, 'jobs', case when cardinality(p_jobs) between 1 and 100 then to_jsonb(p_jobs) end));
    end if;
    perform pg_notify('forebay_events', v_facts::text);
end
$$;


-- What became of jobs of a queue, for a group or, with null, all.
--
-- Parameters: p_became, an outcome of forebay.code, expired or redriven; p_count, where the ids are not known.
create function forebay._announce_jobs(p_queue text, p_group text, p_became text, p_jobs bigint[], p_count bigint default null) returns void
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.notices_seq') is not null and coalesce(p_count, cardinality(p_jobs)) > 0
       and exists (select from forebay.queue_notices n where n.queue = p_queue) then
        perform forebay._send_notice(jsonb_build_object('queue', p_queue, 'group', p_group, 'job', p_became),
                                     coalesce(p_count, cardinality(p_jobs)), p_jobs);
    end if;
end
$$;


-- Requests to cancel jobs that a worker had not, or that were replaced; of any queues.
create function forebay._announce_cancelled(p_found forebay._match[], p_but bigint[]) returns void
language plpgsql volatile
-- planner: indexed
as $$
begin
    if pg_sequence_last_value('forebay.notices_seq') is not null and exists (select from forebay.queue_notices) then
        perform forebay._announce_jobs(c.queue, null, 'cancelled', c.jobs)
        from (select l.queue, array_agg(distinct f.job_id) as jobs
              from unnest(p_found) f
              cross join lateral (select i.queue from forebay.lane i where i.lane = f.lane limit 1) l
              where f.answer = 'changed' and f.job_id <> all (p_but)
              group by l.queue order by l.queue) c;
    end if;
end
$$;


-- How jobs were settled, by the names of the settlements: arrays belong together. Called where the flag forebay.notices_seq was seen.
create function forebay._announce_settled(p_lease_id bigint, p_claims bigint[], p_flushes integer[]) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_end record;
begin
    -- A database in which another queue has them pays for these look-ups, and for no more.
    perform from forebay.batch b
    join forebay.queue_group g on g.group_id = b.group_id
    join forebay.queue_notices n on n.queue = g.queue
    where b.lease_id = p_lease_id and b.claim_no = any (p_claims) limit 1;
    if not found then
        return;
    end if;
    for v_end in
        select g.queue, g.name, c.meaning, count(*) as jobs, (array_agg(e.lane))[:101] as lanes, (array_agg(e.xid))[:101] as xids, (array_agg(e.seq))[:101] as seqs
        from unnest(p_claims, p_flushes) u (claim_no, flush_no)
        cross join lateral (select b.* from forebay.batch b where b.lease_id = p_lease_id and b.claim_no = u.claim_no offset 0) b
        cross join lateral (select i.queue, i.name from forebay.queue_group i join forebay.queue_notices n on n.queue = i.queue
                            where i.group_id = b.group_id offset 0) g
        cross join lateral (select i.offsets, i.outcomes from forebay.settlement i
                            where i.lease_id = p_lease_id and i.claim_no = u.claim_no and i.flush_no = u.flush_no offset 0) s
        cross join lateral (
            select coalesce(b.lanes[i.place], b.lane) as lane, coalesce(b.xids[i.place], b.xids[1]) as xid, b.seqs[i.place] as seq,
                   coalesce(s.outcomes[i.nr], 'd') as code
            from unnest(coalesce(s.offsets::integer[], array(select generate_subscripts(b.seqs, 1)))) with ordinality i (place, nr)) e
        join (select case i.code when 'y' then 'dead' else i.meaning end as meaning, i.code
              from forebay.code i where i.column_name = 'settlement.outcomes') c on c.code = e.code
        group by g.queue, g.name, c.meaning order by g.queue, g.name, c.meaning
    loop
        perform forebay._announce_jobs(
            v_end.queue, v_end.name, v_end.meaning,
            case when v_end.jobs <= 100 then forebay._job_ids_of(v_end.lanes, v_end.xids, v_end.seqs) end, v_end.jobs);
    end loop;
end
$$;


-- The ids of the jobs of rows of the log, in ascending order. Arrays belong together.
create function forebay._job_ids_of(p_lanes bigint[], p_xids xid8[], p_seqs bigint[]) returns bigint[]
language plpgsql stable
-- planner: indexed
as $$
declare
    v_piece record;
    v_ids   bigint[] := '{}';
    v_more  bigint[];
begin
    for v_piece in
        select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.seq) as seqs
        from unnest(p_lanes, p_xids, p_seqs) u (lane, xid, seq)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        execute format(
            'select array_agg(coalesce(l.job_id, l.seq))
             from unnest($1, $2, $3) u (lane, xid, seq)
             cross join lateral (select i.job_id, i.seq from forebay.log_%s i
                                 where i.lane = u.lane and i.xid = u.xid and i.seq = u.seq limit 1) l', v_piece.segment_id)
            into v_more using v_piece.lanes, v_piece.xids, v_piece.seqs;
        v_ids := v_ids || v_more;
    end loop;
    return array(select distinct u from unnest(v_ids) u order by 1);
end
$$;


-- What became of subjects of a queue; true. A run that is issued is no change that is announced, and neither is a new subject.
--
-- Parameters: p_state and p_before, as in forebay.subject_count; p_job, the run.
create function forebay._announce_subjects(p_queue text, p_before "char", p_state "char", p_count bigint, p_job bigint default null) returns boolean
language plpgsql volatile
as $$
begin
    if p_before is not null and p_state is distinct from 'i' and p_state is distinct from p_before and p_count > 0
       and exists (select from forebay.queue_notices n where n.queue = p_queue) then
        perform forebay._send_notice(
            jsonb_build_object('queue', p_queue, 'subject', case coalesce(p_state, 'g') when 's' then 'scheduled' when 'c' then 'completed'
                                                            when 'x' then 'dead' when 'k' then 'killed' else 'dropped' end),
            case when p_job is not null then 1 end, array[p_job]);
    end if;
    return true;
end
$$;


-- An act of an operator. One that names no queue may concern each; those on endpoints concern the queue of deliveries.
create function forebay._announce_act(p_act text, p_queue text, p_group text) returns void
language plpgsql volatile
as $$
declare
    v_queue constant text := coalesce(nullif(p_queue, ''), case when starts_with(p_act, 'endpoints.') then 'forebay.deliver' end);
begin
    if exists (select from forebay.queue_notices n where v_queue is null or n.queue = v_queue) then
        perform forebay._send_notice(jsonb_build_object('queue', v_queue, 'group', p_group, 'act', p_act));
    end if;
end
$$;
