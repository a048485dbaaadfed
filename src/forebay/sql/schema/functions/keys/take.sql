-- The claim of a keyed lane: the counterpart of forebay._take(). The window and the record are here, the choice in decide.sql and choose.sql.
--
-- Invariant "order by key": of a group's jobs with one key, only one lease has any in live batches, and in their order by the
-- numbers of its claims. A key run takes the first of the waiting jobs, in this order: requeued, parked, new to the cursor.
-- While jobs of a key wait, something will make a claim look at the key again:
-- an open key run, a job in a new row in one of the group's lanes, or an unread recheck row.
--
-- Parameters: v, the group's limiter, whose lock is held; null: the queue has no limits on starts and no paused limit key.
create function forebay._take_keyed(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer,
    v forebay._limiter_view)
returns forebay.log[]
language plpgsql volatile
-- planner: arrays
as $$
declare
    c          record;
    v_low      bigint;
    v_from     pg_snapshot;
    v_to       pg_snapshot;
    v_limit    integer := p_limit;       -- how many jobs may be taken
    v_most     integer;                  -- how many rows are read from the log
    v_window   record;
    v_rows     forebay.log[] := '{}';
    v_segments bigint[] := '{}';
    v_looked   integer := 0;
    v_bytes    bigint := 0;              -- size of the rows
    v_old      integer := 0;
    v_count    integer;
    v_used_up  boolean;
    v_taken    forebay._key_choice;
    v_tombstones boolean;
    v_parked_no  bigint;                 -- see batch.parked_no
begin
    -- include: lock_lane
    -- Before the snapshot and before this transaction draws an id: see batch.low_from. The segments are chosen by a later value:
    -- the snapshot may show rows of a segment that was begun since.
    v_low := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    if pg_current_xact_id_if_assigned() is not null then
        raise exception 'the claim of a keyed lane has drawn a transaction id too early';
    end if;

    select pg_current_snapshot() as now, forebay._now() as at,
           g.start_after, g.queue, forebay._paused_since(g.paused_at, g.resume_at) as paused_at, l.audience, l.priority, f.xid as seal_xid,
           -- include: unsealed_segments
           b.no, b.snap_from, b.snap_to, b.pos_segment, b.pos_seq, b.high_seq, b.handed_total, b.skipped_total, b.claimed_at,
           b.keys is not null and b.parked_no is null as has_waiting,
           coalesce(b.low_from, 0) as low_from, coalesce(b.edge_from, '0') as edge_from,
           coalesce(b.low_to, b.low_from, 0) as low_to, coalesce(b.edge_to, b.edge_from, '0') as edge_to,
           coalesce(b.snap_from, w.first) as start, coalesce(b.snap_to, b.snap_from, w.first) as stop
    into c
    from forebay.queue_group g
    left join lateral (select i.audience, i.priority from forebay.lane i where i.lane = p_lane limit 1) l on true
    left join lateral (select s.xid, (select i.hi from forebay.segment i where i.segment_id = s.segment_id) as hi
                       from forebay.seal s order by s.segment_id desc limit 1) f on true
    left join lateral (select * from forebay.batch i
                       where i.group_id = p_group_id and i.lane = p_lane order by i.no desc limit 1) b on true
    cross join lateral (select case l.audience when 0 then g.start_after else '1:1:' end as first) w
    where g.group_id = p_group_id;

    if c.queue is null then
        -- include: no_such_group
    end if;
    if c.audience is null or c.paused_at is not null then
        return '{}';
    end if;
    -- include: cursor_ahead
    if c.audience < 0 then
        v_limit := 1;
    end if;
    -- Where jobs are parked, read fewer than may be taken; otherwise as many would be parked again.
    v_most := case when c.has_waiting then greatest(1, v_limit / 2) else v_limit end;

    if c.snap_to is not null then
        v_window := forebay._window_keyed(p_lane, c.start, c.low_from, c.edge_from, c.stop, c.pos_segment, c.pos_seq, v_most,
                                          c.unsealed, c.seal_xid, forebay._claim_bytes());
        -- include: add_window
        v_old := cardinality(v_rows);
    end if;
    if v_old < v_most and v_bytes < forebay._claim_bytes() then
        v_window := forebay._window_keyed(p_lane, c.stop, c.low_to, c.edge_to, c.now, 0, 0, v_most - v_old, c.unsealed, c.seal_xid, forebay._claim_bytes() - v_bytes);
        -- include: add_window
    end if;
    v_count := cardinality(v_rows);
    v_used_up := v_count < v_most and v_bytes < forebay._claim_bytes();
    -- After the rows were read: the transaction that wrote one of them has already written its tombstones.
    v_tombstones := pg_sequence_last_value('forebay.tombstone_seq') is not null;

    if v_count = 0 then
        if c.snap_to is not null or v_looked > 2 or forebay._should_move(c.start, c.now, c.claimed_at) or forebay._is_old_cursor(c.start) then
            perform forebay._move_idle_cursor(p_group_id, p_lane, c.no, c.now, c.high_seq, c.handed_total, c.skipped_total, c.at,
                                              pg_current_xact_id(), v_low);
        end if;
        return '{}';
    end if;

    v_taken := forebay._decide_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, v_rows, v_limit, greatest(50, 3 * p_limit), v_tombstones,
                                     c.queue, c.priority, c.audience, c.at, v);
    if v_taken.is_plain then
        v_parked_no := coalesce(pg_sequence_last_value('forebay.parked_seq'), 0);
    end if;
    if v_tombstones and v_taken.seqs is not null then
        perform forebay._append_successors(case when v_taken.is_plain then v_rows else v_taken.jobs end, p_group_id);
    end if;

    v_from := c.start;
    v_to := c.stop;
    if v_count > v_old then
        v_from := c.stop;
        v_to := c.now;
        c.low_from := c.low_to;
        c.edge_from := c.edge_to;
        c.low_to := v_low;
        c.edge_to := pg_current_xact_id();
    end if;
    insert into forebay.batch (
        group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq,
        handed_total, skipped_total, claimed_at, seqs, xids, skipped, skipped_as, lanes, keys, tails,
        edge_from, low_from, edge_to, low_to, parked_no, limit_keys)
    select p_group_id, p_lane, coalesce(c.no, 0) + 1,
           case when v_taken.seqs is not null then p_lease_id end, case when v_taken.seqs is not null then p_claim_no end, p_floor,
           case when v_used_up then c.now else v_from end,
           case when v_used_up then null else v_to end,
           case when v_used_up then 0 else v_segments[v_count] end,
           '0', case when v_used_up then 0 else v_rows[v_count].seq end,
           greatest(c.high_seq, v_taken.high),
           coalesce(c.handed_total, 0) + v_taken.fresh, coalesce(c.skipped_total, 0) + v_taken.fresh_skipped,
           c.at, v_taken.seqs, case when v_taken.xids[1] = all (v_taken.xids) then v_taken.xids[:1] else v_taken.xids end, v_taken.skipped, v_taken.skipped_as,
           case when exists (select from unnest(v_taken.lanes) l where l <> p_lane) then v_taken.lanes end, v_taken.keys, v_taken.tails,
           case when v_used_up then pg_current_xact_id() else c.edge_from end,
           case when v_used_up then v_low else c.low_from end,
           case when not v_used_up then c.edge_to end,
           case when not v_used_up then c.low_to end,
           v_parked_no, v_taken.limit_keys
    from (select from forebay.lease i
          where i.lease_id = p_lease_id and i.closed_at is null
          for key share) held;
    -- include: lease_closed
    return case when v_taken.is_plain then v_rows else coalesce(v_taken.jobs, '{}') end;
end
$$;


-- How many slots of a limit key are kept free of jobs that wait in a worker behind others of their ordering key.
create function forebay._reserve(p_concurrency integer) returns integer
language sql immutable
as $$ select coalesce((p_concurrency + 1) / 2, 0) $$;


-- Append a key's next job again, to return in a moment, because it came too early.
create function forebay._append_again(p_queue text, p_group_id bigint, p_priority integer, p_row forebay.log, p_run_at timestamptz)
returns boolean
language plpgsql volatile
as $$
begin
    perform forebay._continue_job(p_row, p_row.lane, p_row.attempt, p_row.pauses, p_run_at);
    perform forebay._record_row_left(p_queue, p_group_id, p_priority, p_row, 'm');
    return true;
end
$$;
