-- One row of the log, found by its position in the claim index.
create function forebay._row(p_lane bigint, p_xid xid8, p_seq bigint) returns forebay.log
language plpgsql stable
as $$
declare
    v_segment bigint;
    v_row     forebay.log;
begin
    select s.segment_id into v_segment from forebay.segment s where s.lo <= p_seq order by s.lo desc limit 1;
    if v_segment is null then
        return null;
    end if;
    execute format('select l.* from forebay.log_%s l where l.lane = $1 and l.xid = $2 and l.seq = $3', v_segment)
        into v_row using p_lane, p_xid, p_seq;
    return v_row;
end
$$;


-- Continue a job in a new row: at once in the log, or deferred until p_run_at. The row always goes to a private
-- lane of the group, so that no other group sees the job again.
--
-- Invariant "nothing lost": called in the same transaction that ends the job's previous row.
create function forebay._continue_job(
    p_row forebay.log, p_lane bigint, p_attempt integer, p_pauses integer, p_run_at timestamptz)
returns void
language plpgsql volatile
as $$
declare
    v_expires_at timestamptz := p_row.expires_at;
    v_seq        bigint;
begin
    -- A flow that has begun: what its producer said of the start is over, however it continues.
    if pg_sequence_last_value('forebay.flow_seq') is not null
       and exists (select from forebay.step s
                   where s.job_id = coalesce(p_row.job_id, p_row.seq)
                     and s.group_id = (select nullif(abs(l.audience), 0) from forebay.lane l where l.lane = p_lane limit 1)) then
        v_expires_at := greatest(p_run_at, forebay._now()) + interval '30 days';
    end if;
    if p_run_at is null then
        insert into forebay.log (
            lane, enqueued_at, job_id, expires_at, attempt, pauses, unique_key, ready_at, {job})
        values (
            p_lane, p_row.enqueued_at, coalesce(p_row.job_id, p_row.seq), v_expires_at, nullif(p_attempt, 0),
            nullif(p_pauses, 0), p_row.unique_key, forebay._now(), {job of p_row})
        returning seq into v_seq;
        perform forebay._note_cancelled_again(array[p_lane], array[v_seq], array[coalesce(p_row.job_id, p_row.seq)]);
    else
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, attempt, pauses, unique_key, {job})
        values (
            p_run_at, p_lane, p_row.enqueued_at, coalesce(p_row.job_id, p_row.seq), v_expires_at, nullif(p_attempt, 0),
            nullif(p_pauses, 0), p_row.unique_key, {job of p_row});
        perform forebay._withdraw_again(coalesce(p_row.job_id, p_row.seq));
        perform forebay._announce_due(p_run_at);
    end if;
    if p_row.headers ? 'forebay-parent' and pg_sequence_last_value('forebay.tombstone_seq') is not null then
        perform forebay._look_if_cancelled(p_row);
    end if;
end
$$;


-- Did an operator move a job of a group from this row, or an older one, to a newer row?
create function forebay._is_moved(p_job_id bigint, p_group_id bigint, p_seq bigint) returns boolean
language sql stable
as $$
    select pg_sequence_last_value('forebay.tombstone_seq') is not null
       and exists (select from forebay.tombstone t
                   where t.job_id = p_job_id and t.reason = 'm' and p_seq <= t.up_to and (t.group_id is null or t.group_id = p_group_id))
$$;


-- Every row of a job in the log, oldest first. A job's first row may have the job's id as its number: one segment can have that row. In the
-- later ones only the index on job_id is read.
create function forebay._rows_of(p_job_id bigint)
returns setof forebay.log
language plpgsql stable
rows 2
-- planner: by number
as $$
declare
    v_segment record;
begin
    for v_segment in
        select s.segment_id, s.lo <= p_job_id as may_have_first from forebay.segment s
        where s.hi > p_job_id and s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
          and forebay._has_table(s.segment_id)
        order by s.segment_id
    loop
        if v_segment.may_have_first then
            return query execute format(
                'select l.* from forebay.log_%s l where l.seq = $1 and l.job_id is null and l.kind <> ''''', v_segment.segment_id) using p_job_id;
        end if;
        return query execute format('select l.* from forebay.log_%s l where l.job_id = $1 order by l.seq', v_segment.segment_id) using p_job_id;
    end loop;
end
$$;
