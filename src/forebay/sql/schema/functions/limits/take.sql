-- The claim of a lane of jobs with limit keys: the counterpart of forebay._take().
--
-- Invariants "no more at once", "no more per second" for each key, "even turns". The claim reads runs of jobs and recheck rows from the
-- public lane and the private lane, in the order of their numbers, until as many keys as jobs may be taken have had a turn. Each key
-- gets an even part. Jobs that it does not get are parked, and the key comes again at the end. A key with parked jobs is served
-- only when a recheck row of its present turn is read; newer jobs are parked behind.
--
-- While jobs of a key are parked, something gives it a turn: an unread recheck row, one scheduled for the time when its bucket has a
-- token, or, if it is full, the settlement of one of its jobs.
--
-- A paused key has no permit, and its jobs are parked. Its next turn comes from a recheck row for the end of the pause, or from the call
-- that resumes it.
--
-- A parked job with an ordering key too is not taken here: its key gets the turn, and a claim of its keyed lane takes the job.
--
-- A suspect is claimed alone from its lane. While its key is full it goes back to its lane, to return after a second; while the key is
-- paused, after ten.
create function forebay._take_limited(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer, v forebay._limiter_view)
returns forebay.log[]
language plpgsql volatile
-- planner: arrays
as $$
declare
    v_here    record;                    -- the lane of the claim
    v_suspect boolean;
    v_limit   integer := p_limit;
    v_cursors forebay._limit_cursor[];
    v_items   forebay._limit_item[];
    v_keys    text[];
    v_states  forebay._limit_state[];
    v_paused  text[] := '{}';            -- paused keys, and the ends of the pauses
    v_ends    timestamptz[] := '{}';
    v_plan    forebay._limit_plan;
    v_pieces  forebay._limit_pieces;
    v_all     record;                    -- the pieces, where all that is read may be taken
    v_is_plain boolean := false;
    v_used    integer;                   -- how many of the items are used
    v_rows    forebay.log[];
    v_nrs     bigint[];
    v_taken   record;
begin
    select l.queue, l.priority, l.audience into v_here from forebay.lane l where l.lane = p_lane limit 1;
    v_suspect := v_here.audience < 0;
    if v_suspect then
        v_limit := 1;
    end if;
    select c.cursors, c.items into v_cursors, v_items
    from forebay._read_limited(p_group_id, p_lane, v_here.queue, v_here.priority, v_suspect, v_limit + 20) c;
    if v_cursors is null then
        return '{}';  -- Paused.
    end if;
    if v_suspect and v_items <> '{}' then
        v_items := v_items[:1];
        v_cursors[1].is_more := v_cursors[1].is_more or v_items[1].jobs > 1;  -- The rest of the run.
        v_items[1].seq_to := v_items[1].seq;
        v_items[1].jobs := 1;
    end if;
    if cardinality(v_items) = 0 then
        perform forebay._move_limited(p_group_id, v_cursors, v_items, v.at);
        return '{}';
    end if;
    v_keys := array(select distinct i.limit_key from unnest(v_items) i);
    select m.states, m.paused, m.ends into v_states, v_paused, v_ends from forebay._limits_met(p_group_id, v_here.queue, v_keys, v) m;

    -- Nearly always no job of these keys waits, and all that is read may be taken.
    if not v_suspect then
        select array_agg(i.nr order by i.nr) as nrs, array_agg(i.lane order by i.nr) as lanes, array_agg(i.xid order by i.nr) as xids,
               array_agg(i.seq - 1 order by i.nr) as afters, array_agg(i.seq_to order by i.nr) as seqs_to, array_agg(i.jobs order by i.nr) as takes,
               max(i.ordinality)::integer as used,
               bool_and(i.jobs > 0 and s.waiting = 0 and s.permits >= i.of_key)
               and (max(i.ordinality) = cardinality(v_items) and not exists (select from unnest(v_cursors) c where c.is_more)
                    or max(i.of_key) <= greatest(1, v_limit / cardinality(v_keys))) as is_plain
        into v_all
        from (select u.*, row_number() over (order by u.key_at, u.ordinality) as nr, sum(u.jobs) over (partition by u.limit_key) as of_key
              from (select r.*, min(r.ordinality) over (partition by r.limit_key) as key_at, sum(r.jobs) over (order by r.ordinality) as up_to
                    from unnest(v_items) with ordinality r) u
              where u.up_to <= v_limit) i
        join unnest(v_states) s on s.limit_key = i.limit_key;
        if v_all.is_plain then
            v_used := v_all.used;
            select f.nrs, f.jobs into v_nrs, v_rows
            from forebay._fetch_limited(v_all.nrs, v_all.lanes, v_all.xids, v_all.afters, v_all.seqs_to, v_all.takes) f;
            v_is_plain := (select sum(forebay._job_bytes(r.args, r.headers)) from unnest(v_rows) r) < forebay._claim_bytes();
        end if;
    end if;

    if not v_is_plain then
        v_plan := forebay._plan_limited(v_items, v_keys, v_states, v_limit, v_suspect);
        v_pieces := forebay._limited_pieces(p_group_id, v_plan, v_items, v_states);
        v_used := v_plan.used;
        select f.nrs, f.jobs into v_nrs, v_rows from forebay._fetch_pieces(v_pieces) f;
    end if;

    -- What becomes of each job. A claim ends with the job that brings their texts to the limit.
    with job as materialized (
        select r.piece_no, r.job, coalesce((r.job).seq, r.seq) as seq, (r.job).xid, (r.job).lane, coalesce((r.job).limit_key, r.limit_key) as limit_key, r.ordering_key,
               case when r.ordering_key is not null then 'o' when n.reason = 'm' then 'm' when n.reason in ('c', 'r') then 'c' when n.reason = 'e' then 'E'
                    when coalesce((r.job).expires_at, (r.job).enqueued_at + interval '30 days') <= v.at then 'e' end as verdict,
               sum(case when r.ordering_key is null then forebay._job_bytes((r.job).args, (r.job).headers) else 0 end) over (o rows between unbounded preceding and 1 preceding) as before
        from (select unnest(v_nrs) as piece_no, unnest(v_rows) as job, null::text as ordering_key, null::bigint as seq, null::text as limit_key
              union all
              -- Of a job with an ordering key too: the key gets the turn, the job is not taken here.
              select u.nr, null, u.ordering_key, u.seq, v_keys[u.key]
              from unnest(v_pieces.nrs, v_pieces.ordering_keys, v_pieces.keys, v_pieces.seqs_to) u (nr, ordering_key, key, seq)
              where u.ordering_key is not null) r
        left join lateral (
            select i.reason from forebay.tombstone i
            where pg_sequence_last_value('forebay.tombstone_seq') is not null and i.job_id = coalesce((r.job).job_id, (r.job).seq)
              and (i.group_id is null or i.group_id = p_group_id) and i.reason <> 'k' and (i.reason <> 'm' or (r.job).seq <= i.up_to)
            order by i.reason = 'm' desc, i.reason = 'e' desc limit 1) n on true
        window o as (order by r.piece_no, coalesce((r.job).seq, r.seq))
    ), kept as materialized (
        select j.*, l.priority, row_number() over (partition by j.verdict is null order by j.piece_no, j.seq)::smallint as place
        from job j
        left join (select distinct i.lane, i.priority from forebay.lane i where i.queue = v_here.queue and i.sort = 'limited') l on l.lane = j.lane
        where coalesce(j.before, 0) < forebay._claim_bytes()
    ), piece as materialized (
        select k.piece_no, count(*) as jobs, max(k.seq) as seq from kept k group by k.piece_no
    ), run as materialized (
        -- The jobs of a key follow one another.
        select k.limit_key, count(*) as jobs, min(k.place) as first, min(k.seq) as low, max(k.seq) as high
        from kept k where k.verdict is null group by k.limit_key
    )
    select (select array_agg(k.seq order by k.place) from kept k where k.verdict is null) as seqs,
           (select array_agg(k.xid order by k.place) from kept k where k.verdict is null) as xids,
           (select array_agg(k.lane order by k.place) from kept k where k.verdict is null) as lanes,
           (select array_agg(k.limit_key order by k.place) from kept k where k.verdict is null) as keys,
           (select array_agg(k.job order by k.place) from kept k where k.verdict is null) as jobs,
           (select array_agg(k.seq order by k.place) from kept k where k.verdict <> 'o') as skipped,
           (select array_agg(lower(k.verdict)::"char" order by k.place) from kept k where k.verdict <> 'o') as skipped_as,
           array(select k.ordering_key from kept k where k.verdict = 'o' order by k.place) as granted_keys,
           array(select k.limit_key from kept k where k.verdict = 'o' order by k.place) as granted_limits,
           array(select k.seq from kept k where k.verdict = 'o' order by k.place) as granted_seqs,
           (select array_agg(forebay._write_dead_letter(p_group_id, v_here.queue, v_here.priority, k.job, 'expired',
                                                        coalesce((k.job).attempt, 0)) order by k.place)
            from kept k where k.verdict = 'e') as dead,
           -- Moved ones, and those that the sweep has expired, were counted by these.
           (select count(*) from kept k where k.verdict is null and k.priority = v_here.priority) as counted,
           (select count(*) from kept k where k.verdict in ('c', 'e') and k.priority = v_here.priority) as counted_skipped,
           (select count(forebay._record_skipped(v_here.queue, p_group_id, k.priority, k.jobs))
            from (select i.priority, count(*)::integer as jobs from kept i
                  where i.priority <> v_here.priority and coalesce(i.verdict, 'c') in ('c', 'e') group by i.priority) k) as others,
           (select max(k.seq) from kept k) as high,
           array(select r.limit_key from run r order by r.limit_key) as run_keys,
           array(select r.jobs from run r order by r.limit_key) as run_jobs,
           array(select r.first from run r order by r.limit_key) as run_firsts,
           array(select r.low from run r order by r.limit_key) as run_lows,
           array(select r.high from run r order by r.limit_key) as run_highs,
           array(select p.piece_no from piece p order by p.piece_no) as kept_nrs,
           array(select p.jobs from piece p order by p.piece_no) as kept_jobs,
           array(select p.seq from piece p order by p.piece_no) as kept_seqs
    into v_taken;
    if v_taken.dead is not null then
        perform forebay._report_deaths(v_taken.dead);
    end if;
    if v_taken.seqs is not null and pg_sequence_last_value('forebay.tombstone_seq') is not null then
        perform forebay._append_successors(v_taken.jobs, p_group_id);
    end if;

    if v_suspect then
        if v_pieces.nrs = '{}' then
            perform forebay._append_again(
                v_here.queue, p_group_id, v_here.priority, forebay._row(v_items[1].lane, v_items[1].xid, v_items[1].seq),
                v.at + case when v_items[1].limit_key = any (v_paused) then interval '10 seconds' else interval '1 second' end);
        end if;
        v_plan.used := 0;  -- Nothing is parked, whatever comes.
    end if;
    if v_is_plain then
        insert into forebay.limit_run (
            group_id, limit_key, no, lease_id, claim_no, place, jobs, high_seq, is_full, tat, decided_at, turn, parked_up_to, taken_up_to, leases,
            claims, offsets, limits_no)
        select p_group_id, r.key, s.no + 1, p_lease_id, p_claim_no, r.first, r.jobs::smallint, r.high, false,
               forebay._tat_after(s.tat, s.rate, v.at, r.jobs::integer), case when s.rate is not null then v.at end,
               nullif(s.turn, 0), nullif(s.parked_up_to, 0), nullif(s.taken_up_to, 0), nullif(s.leases, '{}'), nullif(s.claims, '{}'),
               nullif(s.offsets, '{}'), s.limits_no
        from unnest(v_taken.run_keys, v_taken.run_jobs, v_taken.run_firsts, v_taken.run_highs) r (key, jobs, first, high)
        join unnest(v_states) s on s.limit_key = r.key
        where s.rate is not null or s.has_new_limits or s.concurrency is not null and not v.is_bare;
    else
        perform forebay._record_limit_turns(
            p_lease_id, p_claim_no, p_group_id, v_here.queue, v_here.priority, v_items, v_states, v_plan, v_pieces,
            row(v_taken.run_keys, v_taken.run_jobs, v_taken.run_firsts, v_taken.run_lows, v_taken.run_highs, v_taken.kept_nrs, v_taken.kept_jobs,
                v_taken.kept_seqs, v_taken.granted_keys, v_taken.granted_limits, v_taken.granted_seqs)::forebay._limit_runs,
            v_suspect, v_paused, v_ends, v);
    end if;

    v_items := v_items[:case when v_suspect then 1 else v_used end];
    if v_taken.seqs is null and v_taken.skipped is null then
        perform forebay._move_limited(p_group_id, v_cursors, v_items, v.at);
        return '{}';
    end if;
    perform forebay._move_limited(p_group_id, array(select c from unnest(v_cursors) c where c.lane <> p_lane), v_items, v.at);
    insert into forebay.batch (
        group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq,
        handed_total, skipped_total, claimed_at, seqs, xids, skipped, skipped_as, lanes, limit_keys)
    select p_group_id, p_lane, p.no + 1,
           case when v_taken.seqs is not null then p_lease_id end, case when v_taken.seqs is not null then p_claim_no end, p_floor,
           p.snap_from, p.snap_to, p.pos_segment, p.pos_xid, p.pos_seq, greatest(p.high_seq, v_taken.high),
           p.handed_total + v_taken.counted, p.skipped_total + v_taken.counted_skipped, v.at, v_taken.seqs,
           case when v_taken.xids[1] = all (v_taken.xids) then v_taken.xids[:1] else v_taken.xids end, v_taken.skipped, v_taken.skipped_as,
           case when exists (select from unnest(v_taken.lanes) l where l <> p_lane) then v_taken.lanes end, v_taken.keys
    from (select from forebay.lease i
          where i.lease_id = p_lease_id and i.closed_at is null
          for key share) held,
         forebay._limited_positions(array(select c from unnest(v_cursors) c where c.lane = p_lane), v_items) p;
    -- include: lease_closed
    return coalesce(v_taken.jobs, '{}');
end
$$;
