-- grant: operator, reader

-- How workers took a job, oldest first: a row for each of its rows in the log and each group that
-- has passed it, and one for each further claim of a row that was requeued behind another job of
-- its ordering key. A job that waits for its first attempt has none.
--
-- Columns:
--   attempt             the number of the attempt, from 1
--   xid                 the transaction that wrote the row; of the first row, that of the enqueue
--   same_xid            jobs of that transaction in the same lane, at most 1,000
--   claimed_at, worker  who took it
--   outcome             done, retried, dead, cancelled, snoozed, released, lost (its worker was),
--                       unknown (no handler there), requeued (behind another job of its ordering
--                       key); expired or moved, if it was not started; null while a worker has it
--   ended_at            when it was settled
--   millis              how long the handler ran; null if it was not measured
--
-- See: docs/howto/look-back.md, docs/design/ordering.md
-- pages: 1400 + 60 a segment
create function forebay.job_attempts(job_id bigint)
returns table (group_name text, attempt integer, seq bigint, xid xid8, same_xid bigint, is_first boolean, claimed_at timestamptz, worker text,
               outcome text, ended_at timestamptz, millis integer)
language plpgsql stable security definer
rows 4
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_row   record;
    v_batch forebay.batch;
    v_place smallint;
    v_end   record;
begin
    for v_row in
        select r.*, i.audience, g.group_id, g.name
        from forebay._rows_of(job_attempts.job_id) r
        cross join lateral (select l.queue, l.audience from forebay.lane l where l.lane = r.lane limit 1) i
        left join forebay.queue_group g on g.queue = i.queue and (i.audience = 0 or g.group_id = abs(i.audience))
        where i.audience <> 0 or g.start_after is null or not pg_visible_in_snapshot(r.xid, g.start_after)
        order by r.seq, g.created_at, g.group_id
    loop
        for v_batch in
            select * from forebay._batches_of_row(v_row.group_id, v_row.lane, v_row.seq, v_row.ordering_key, v_row.limit_key)
        loop
            group_name := coalesce(v_row.name, 'default');
            seq := v_row.seq;
            xid := v_row.xid;
            is_first := v_row.job_id is null;
            same_xid := case when is_first then forebay._rows_of_xid(v_row.lane, v_row.xid, v_row.seq) end;
            attempt := coalesce(v_row.attempt, 0) + 1;
            claimed_at := v_batch.claimed_at;
            worker := (select l.worker from forebay.lease l where l.lease_id = v_batch.lease_id);
            outcome := null;
            ended_at := null;
            millis := null;
            v_place := array_position(v_batch.seqs, v_row.seq);
            if v_place is null and v_batch.claimed_at is not null then
                outcome := (select c.meaning from forebay.code c
                            where c.column_name = 'batch.skipped_as' and c.code = v_batch.skipped_as[array_position(v_batch.skipped, v_row.seq)]);
                ended_at := v_batch.claimed_at;
                worker := null;
            elsif v_place is not null then
                select s.settled_at, coalesce(s.outcomes[array_position(s.offsets, v_place)], s.outcomes[case when s.offsets is null then v_place end], 'd') as code,
                       s.millis[case when s.offsets is null then v_place else array_position(s.offsets, v_place) end] as millis
                into v_end
                from forebay.settlement s
                where s.lease_id = v_batch.lease_id and s.claim_no = v_batch.claim_no and (s.offsets is null or v_place = any (s.offsets))
                limit 1;
                if found then
                    outcome := (select c.meaning from forebay.code c where c.column_name = 'settlement.outcomes' and c.code = v_end.code);
                    ended_at := v_end.settled_at;
                    millis := v_end.millis;
                end if;
            end if;
            return next;
        end loop;
    end loop;
end
$$;


-- The batches of a group that had a row, oldest first: that of a keyed job has several if it was requeued. A row of nulls if none had it.
create function forebay._batches_of_row(p_group_id bigint, p_lane bigint, p_seq bigint, p_ordering_key text, p_limit_key text)
returns setof forebay.batch
language plpgsql stable
as $$
begin
    return query
        select b.* from forebay.key_run t
        join forebay.batch b on b.lease_id = t.lease_id and b.claim_no = t.claim_no
        where t.group_id = p_group_id and t.ordering_key = p_ordering_key and t.low_seq <= p_seq and coalesce(t.high_seq, t.low_seq) >= p_seq
          and p_seq = any (b.seqs)
        order by t.no;
    if not found then
        return next forebay._batch_of_row(p_group_id, p_lane, p_seq, p_ordering_key, p_limit_key);
    end if;
end
$$;


-- How many rows of a lane a transaction has written, at most 1000: no more are read, where a bitmap would read all.
create function forebay._rows_of_xid(p_lane bigint, p_xid xid8, p_seq bigint) returns bigint
language plpgsql stable
-- planner: in order
as $$
declare
    v_count bigint;
begin
    execute (
        select format('select count(*) from (select from forebay.log_%s l where l.lane = $1 and l.xid = $2 limit 1000) c', s.segment_id)
        from forebay.segment s where s.lo <= p_seq order by s.lo desc limit 1) into v_count using p_lane, p_xid;
    return v_count;
end
$$;
