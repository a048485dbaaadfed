-- State of one log row for a group: waiting, running, ended, or superseded by a newer row of the job.
--
-- The batch that disposed of the row is the first one whose cursor has passed it. The search goes backwards from the newest
-- batch, in steps that double, since the batch is mostly near; the oldest batches, where rows may be deleted, are not read.
create function forebay._row_state(p_group_id bigint, p_lane bigint, p_xid xid8, p_seq bigint) returns text
language plpgsql stable
as $$
declare
    v_hi     bigint;
    v_lo     bigint;
    v_try    bigint;
    v_step   bigint := 1;
    v_passed boolean;
    v_batch  record;
    v_code   "char";
    v_row    forebay.log;
    v_other  forebay.batch;
begin
    if p_seq < forebay._archived_below() then
        return 'superseded';
    end if;
    select b.no,
           b.high_seq >= p_seq and forebay._is_consumed(p_xid, p_seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)
    into v_hi, v_passed
    from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
    where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1;
    if v_passed is not true then
        return 'waiting';
    end if;
    v_lo := v_hi;
    loop
        v_try := case when v_lo = v_hi then v_hi - v_step else (v_lo + v_hi) / 2 end;
        v_passed := false;  -- Also when the batch of this number was deleted.
        select b.high_seq >= p_seq and forebay._is_consumed(p_xid, p_seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)
        into v_passed
        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
        where b.group_id = p_group_id and b.lane = p_lane and b.no = v_try;
        if v_lo < v_hi then
            if v_passed then
                v_hi := v_try;
            else
                v_lo := v_try;
            end if;
        elsif v_passed then
            v_lo := v_try;
            v_hi := v_try;
            v_step := v_step * 2;
        else
            v_lo := v_try;
        end if;
        exit when v_hi = v_lo + 1;
    end loop;

    select b.lease_id, b.claim_no, array_position(b.seqs, p_seq) as place, array_position(b.skipped, p_seq) as skip, b.skipped_as
    into v_batch
    from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_hi;
    if v_batch.skip is not null then
        return case when v_batch.skipped_as[v_batch.skip] in ('c', 'e') then 'ended' else 'superseded' end;
    elsif v_batch.place is null then
        -- Jobs with keys: the row may have been parked when its batch passed it.
        v_row := forebay._row(p_lane, p_xid, p_seq);
        if v_row.ordering_key is not null then
            if forebay._is_parked(p_group_id, v_row.ordering_key, p_seq) then
                return 'waiting';
            end if;
            v_other := forebay._keyed_batch_of(p_group_id, v_row.ordering_key, p_seq);
        elsif v_row.limit_key is not null then
            if forebay._is_limit_parked(p_group_id, v_row.limit_key, p_xid, p_seq) then
                return 'waiting';
            end if;
            v_other := forebay._limited_batch_of(p_group_id, v_row.limit_key, p_lane, p_seq);
        end if;
        select v_other.lease_id, v_other.claim_no, array_position(v_other.seqs, p_seq) as place, array_position(v_other.skipped, p_seq) as skip,
               v_other.skipped_as
        into v_batch;
        if v_batch.skip is not null then
            return case when v_batch.skipped_as[v_batch.skip] in ('c', 'e') then 'ended' else 'superseded' end;
        end if;
    end if;
    if v_batch.place is null then
        return 'superseded';
    end if;
    select coalesce(s.outcomes[array_position(s.offsets, v_batch.place::smallint)], 'd') into v_code
    from forebay.settlement s
    where s.lease_id = v_batch.lease_id and s.claim_no = v_batch.claim_no
      and (s.offsets is null or v_batch.place::smallint = any (s.offsets))
    limit 1;
    if v_code = 'k' then  -- Requeued behind an earlier job of its ordering key.
        v_row := forebay._row(p_lane, p_xid, p_seq);
        if forebay._is_parked(p_group_id, v_row.ordering_key, p_seq) then
            return 'waiting';
        end if;
        v_other := forebay._keyed_batch_of(p_group_id, v_row.ordering_key, p_seq);
        if (v_other.lease_id, v_other.claim_no) is distinct from (v_batch.lease_id, v_batch.claim_no) then
            v_code := (select coalesce(s.outcomes[array_position(s.offsets, array_position(v_other.seqs, p_seq)::smallint)], 'd')
                       from forebay.settlement s
                       where s.lease_id = v_other.lease_id and s.claim_no = v_other.claim_no
                         and (s.offsets is null or array_position(v_other.seqs, p_seq)::smallint = any (s.offsets)) limit 1);
        end if;
    end if;
    return case when v_code is null then 'running' when v_code in ('d', 'c', 'x', 'y') then 'ended' else 'superseded' end;
end
$$;


-- State of the job of a generation for one group, or for a queue without groups: waiting, running, ended; null when
-- the group does not read it.
--
-- A waiting job that was cancelled, replaced or has expired has ended: no claim will start it.
create function forebay._key_state_in(p_key forebay.unique_key, p_group_id bigint, p_start_after pg_snapshot) returns text
language plpgsql stable
as $$
declare
    v_row_state    text := 'superseded';
    v_position    forebay.promotion;
    v_segment bigint;
    v_row     record;
begin
    if not p_key.is_deferred then
        if pg_visible_in_snapshot(p_key.xid, p_start_after) then
            return null;
        end if;
        if not forebay._is_moved(p_key.job_id, p_group_id, p_key.job_id) then
            v_row_state := forebay._row_state(p_group_id, p_key.lane, p_key.xid, p_key.job_id);
        end if;
    end if;
    if v_row_state = 'superseded' then
        select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
        if exists (
            select from forebay.deferred d
            join lateral (select l.audience from forebay.lane l where l.lane = d.lane limit 1) a on true
            where d.job_id = p_key.job_id and a.audience in (0, p_group_id, -p_group_id)
              and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                       and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))) then
            v_row_state := 'waiting';
        else
            v_row_state := 'ended';
            for v_segment in
                select s.segment_id from forebay.segment s
                where s.hi > p_key.job_id and s.removed_at is null
                  and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and forebay._has_table(s.segment_id)
                order by s.segment_id desc
            loop
                execute format(
                    'select l.lane, l.xid, l.seq, a.audience from forebay.log_%s l
                     join lateral (select i.audience from forebay.lane i where i.lane = l.lane limit 1) a on true
                     where l.job_id = $1 and a.audience in (0, $2, -$2)
                     order by l.seq desc limit 1', v_segment)
                    into v_row using p_key.job_id, p_group_id;
                if v_row.seq is not null then
                    if v_row.audience = 0 and pg_visible_in_snapshot(v_row.xid, p_start_after) then
                        return null;
                    end if;
                    v_row_state := forebay._row_state(p_group_id, v_row.lane, v_row.xid, v_row.seq);
                    exit;
                end if;
            end loop;
        end if;
    end if;
    if v_row_state = 'waiting'
       and (p_key.expires_at <= forebay._now()
            or exists (select from forebay.tombstone t
                       where t.job_id = p_key.job_id and t.reason not in ('k', 'm') and (t.group_id is null or t.group_id = p_group_id))) then
        return 'ended';
    end if;
    return case v_row_state when 'superseded' then 'ended' else v_row_state end;
end
$$;


-- State of the job of a generation: waiting (for every group of its queue), ended (for every group), else running. For the group
-- p_claiming, whose claim is taking the job, it counts as waiting.
create function forebay._key_state(p_key forebay.unique_key, p_claiming bigint default null) returns text
language plpgsql stable
as $$
declare
    v_group   record;
    v_key_state   text;
    v_waiting boolean := false;
    v_ended   boolean := false;
    v_any     boolean := false;
begin
    for v_group in
        select g.group_id, g.start_after
        from (select * from forebay.queue_group i where i.queue = p_key.queue collate "default" offset 0) g  -- As in its index.
        order by g.created_at, g.group_id
    loop
        v_any := true;
        v_key_state := case when v_group.group_id = p_claiming then 'waiting'
                            else forebay._key_state_in(p_key, v_group.group_id, v_group.start_after) end;
        if v_key_state = 'running' then
            return v_key_state;
        end if;
        v_waiting := v_waiting or coalesce(v_key_state = 'waiting', false);
        v_ended := v_ended or coalesce(v_key_state = 'ended', false);
    end loop;
    if not v_any then
        return coalesce(forebay._key_state_in(p_key, null, null), 'ended');
    end if;
    return case when not v_waiting then 'ended' when v_ended then 'running' else 'waiting' end;
end
$$;
