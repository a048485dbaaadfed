-- The claim itself, shared with the sweep: with p_sweep it takes nothing, and stops before the first
-- job that can still run. Null: it read nothing, since the group is paused or the lane unknown.
create function forebay._take(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer,
    p_sweep boolean)
returns forebay.log[]
language plpgsql volatile
as $$
declare
    c          record;
    v_from     pg_snapshot;              -- the current window
    v_to       pg_snapshot;
    v_limit    integer := p_limit;
    v_window   record;
    v_rows     forebay.log[] := '{}';
    v_segments bigint[] := '{}';
    v_looked   integer := 0;
    v_bytes    bigint := 0;              -- size of the rows
    v_old      integer := 0;             -- how many of the rows belong to the current window
    v_count    integer;                  -- how many rows this call disposes of
    v_verdicts "char"[];                 -- e expired, E expired and already a dead letter, c cancelled, m moved, null to be run
    v_taken    forebay.log[];
    v_seqs     bigint[];
    v_xids     xid8[];
    v_skipped  bigint[];
    v_as       "char"[];
    v_high     bigint;
    v_used_up  boolean;
    v_tombstones boolean;
    v_dead     bigint[];
    v_uncounted bigint := 0;             -- skipped rows that are in forebay.counter_change: moved, or expired by the sweep
begin
    -- include: lock_lane

    -- A later statement than the lock: its snapshot sees what the last holder committed.
    select forebay._snapshot_of_others() as now, forebay._now() as at,
           g.start_after, g.queue, forebay._paused_since(g.paused_at, g.resume_at) as paused_at, l.audience, l.priority,
           f.xid as seal_xid,
           -- include: unsealed_segments
           b.no, b.snap_from, b.snap_to, b.pos_segment, b.pos_xid, b.pos_seq, b.high_seq,
           b.handed_total, b.skipped_total, b.claimed_at, w.start, w.stop
    into c
    from forebay.queue_group g
    left join lateral (select i.audience, i.priority from forebay.lane i where i.lane = p_lane limit 1) l on true
    left join lateral (select s.xid, i.hi from forebay.seal s join forebay.segment i using (segment_id)
                       order by s.segment_id desc limit 1) f on true
    left join lateral (select * from forebay.batch i
                       where i.group_id = p_group_id and i.lane = p_lane
                       order by i.no desc limit 1) b on true
    cross join lateral (
        select coalesce(b.snap_from, f.first) as start, coalesce(b.snap_to, b.snap_from, f.first) as stop
        from (select case l.audience when 0 then g.start_after else '1:1:' end as first) f) w
    where g.group_id = p_group_id;

    if c.queue is null then
        -- include: no_such_group
    end if;
    if c.audience is null or (c.paused_at is not null and not p_sweep) then
        return null;
    end if;

    v_from := c.start;
    v_to := c.stop;
    -- include: cursor_ahead
    if c.audience < 0 and not p_sweep then
        v_limit := 1;
    end if;

    -- The rest of the current window, then the next one, from its end to now.
    if c.snap_to is not null then
        v_window := forebay._window(p_lane, forebay._xid_ranges(v_from, v_to), c.pos_segment, c.pos_xid, c.pos_seq, v_limit,
                                    c.unsealed, c.seal_xid, forebay._claim_bytes());
        -- include: add_window
        v_old := cardinality(v_rows);
    end if;
    if v_old < v_limit and v_bytes < forebay._claim_bytes() then
        v_window := forebay._window(p_lane, forebay._xid_ranges(v_to, c.now), 0, '0', 0, v_limit - v_old, c.unsealed, c.seal_xid,
                                    forebay._claim_bytes() - v_bytes);
        -- include: add_window
    end if;
    v_count := cardinality(v_rows);
    v_used_up := v_count < v_limit and v_bytes < forebay._claim_bytes();
    -- After the rows were read: the transaction that wrote one of them has already written its tombstones.
    v_tombstones := pg_sequence_last_value('forebay.tombstone_seq') is not null;

    if v_count = 0 then
        if c.snap_to is not null or v_looked > 2 or forebay._should_move(v_from, c.now, c.claimed_at) or forebay._is_old_cursor(v_from) then
            perform forebay._move_idle_cursor(p_group_id, p_lane, c.no, c.now, c.high_seq, c.handed_total, c.skipped_total, c.at);
        end if;
        return '{}';
    end if;

    select array_agg(u.seq order by u.ordinality), array_agg(u.xid order by u.ordinality), max(u.seq),
           array_agg(case when t.reason = 'm' then 'm'
                          when t.reason in ('c', 'r') then 'c'
                          when t.reason = 'e' then 'E'
                          when coalesce(u.expires_at, u.enqueued_at + interval '30 days') <= c.at then 'e'
                     end::"char" order by u.ordinality)
    into v_seqs, v_xids, v_high, v_verdicts
    from unnest(v_rows) with ordinality u
    left join lateral (
        select i.reason from forebay.tombstone i
        where v_tombstones and i.job_id = coalesce(u.job_id, u.seq) and (i.group_id is null or i.group_id = p_group_id)
          and i.reason <> 'k' and (i.reason <> 'm' or u.seq <= i.up_to)
        -- The newer row of a moved job decides. An expiry outranks a cancellation: its dead letter is written.
        order by i.reason = 'm' desc, i.reason = 'e' desc limit 1) t on true;

    v_taken := v_rows;
    if p_sweep then
        v_count := coalesce(array_position(v_verdicts, null) - 1, v_count);
        if v_count = 0 then
            return '{}';
        end if;
        v_used_up := v_used_up and v_count = cardinality(v_rows);
        v_high := (select max(s) from unnest(v_seqs[:v_count]) s);
    end if;
    if p_sweep or v_verdicts[1] is not null or array_position(v_verdicts, 'c') is not null or array_position(v_verdicts, 'm') is not null
       or array_position(v_verdicts, 'e') is not null or array_position(v_verdicts, 'E') is not null then
        select array_agg((u.r).seq order by u.nr) filter (where u.verdict is not null),
               array_agg(lower(u.verdict)::"char" order by u.nr) filter (where u.verdict is not null),
               array_agg((u.r).seq order by u.nr) filter (where u.verdict is null),
               array_agg((u.r).xid order by u.nr) filter (where u.verdict is null),
               array_agg(u.r order by u.nr) filter (where u.verdict is null),
               array_agg(forebay._write_dead_letter(p_group_id, c.queue, c.priority, u.r, 'expired', coalesce((u.r).attempt, 0)) order by u.nr)
                   filter (where u.verdict = 'e'),
               count(*) filter (where u.verdict in ('m', 'E'))
        into v_skipped, v_as, v_seqs, v_xids, v_taken, v_dead, v_uncounted
        from (select unnest(v_rows) as r, unnest(v_verdicts) as verdict, generate_subscripts(v_rows, 1) as nr) u
        where u.nr <= v_count;
        if v_dead is not null then
            perform forebay._report_deaths(v_dead);
        end if;
    end if;
    if v_xids[1] = all (v_xids) then
        v_xids := v_xids[:1];
    end if;
    if v_tombstones and v_seqs is not null then
        perform forebay._append_successors(v_taken, p_group_id);
    end if;

    -- The window of the last row, or an empty one at now when everything is used up.
    if v_count > v_old then
        v_from := v_to;
        v_to := c.now;
    end if;
    insert into forebay.batch (
        group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq,
        handed_total, skipped_total, claimed_at, seqs, xids, skipped, skipped_as)
    select p_group_id, p_lane, coalesce(c.no, 0) + 1,
           case when v_seqs is not null then p_lease_id end, case when v_seqs is not null then p_claim_no end, p_floor,
           case when v_used_up then c.now else v_from end,
           case when v_used_up then null else v_to end,
           case when v_used_up then 0 else v_segments[v_count] end,
           case when v_used_up then '0' else v_rows[v_count].xid end,
           case when v_used_up then 0 else v_rows[v_count].seq end,
           greatest(c.high_seq, v_high),
           coalesce(c.handed_total, 0) + coalesce(cardinality(v_seqs), 0),
           coalesce(c.skipped_total, 0) + coalesce(cardinality(v_skipped), 0) - v_uncounted,
           c.at, v_seqs, v_xids, v_skipped, v_as
    from (select where p_sweep
          union all
          select from (select from forebay.lease i
                       where i.lease_id = p_lease_id and i.closed_at is null
                       for key share) held) fence;
    -- include: lease_closed
    return coalesce(v_taken, '{}');
end
$$;
