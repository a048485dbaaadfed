-- Claim: what a group has not had yet, from one lane, in the order segment, xid, seq.
--
-- A window (from, to] is two snapshots: a row is in it when it is visible in `to` and not visible in
-- `from`. When a claim uses a window up, `from` becomes `to` and `to` becomes now, in the same call:
-- the batch rule of PgQ (M. Kreen, A. Helsing, Skype, 2007) with the tick moved into the claim.


-- The rows of one lane in a window, after a position, at most p_limit; and how many segments were looked at.
--
-- Segments are chosen by their seals: sealed with X_S, a segment has only rows with an xid below X_S.
-- p_late are the xids in progress in the window's `from` that are visible in its `to`, in order.
create function forebay._window(
    p_lane bigint, p_xmax xid8, p_to pg_snapshot, p_late xid8[],
    p_pos_segment bigint, p_pos_xid xid8, p_pos_seq bigint, p_limit integer,
    p_unsealed bigint[], p_last_seal xid8,
    out rows forebay.log[], out segments bigint[], out looked integer)
language plpgsql volatile
as $$
declare
    v_needed  bigint[] := p_unsealed;
    v_piece   forebay.log[];
    v_segment bigint;
begin
    rows := '{}';
    segments := '{}';
    looked := 0;
    if p_last_seal > p_xmax or (cardinality(p_late) > 0 and p_last_seal > p_late[1]) then
        v_needed := array(
            select s.segment_id from forebay.seal s
            where s.segment_id >= p_pos_segment
              and s.segment_id <> all (p_unsealed)  -- Sealed since the caller looked: read once.
              and (s.xid > p_xmax or (cardinality(p_late) > 0 and s.xid > p_late[1]))
            order by s.segment_id) || v_needed;
    end if;
    foreach v_segment in array v_needed loop
        continue when v_segment < p_pos_segment;
        looked := looked + 1;
        execute 'select forebay._read_' || v_segment || '($1, $2, $3, $4, $5, $6, $7)'
            into v_piece
            using p_lane, p_xmax, p_to, p_late,
                  case when v_segment = p_pos_segment then p_pos_xid else '0'::xid8 end,
                  case when v_segment = p_pos_segment then p_pos_seq else 0 end,
                  p_limit - cardinality(rows);
        if cardinality(v_piece) > 0 then
            rows := rows || v_piece;
            segments := segments || array_fill(v_segment, array[cardinality(v_piece)]);
            exit when cardinality(rows) >= p_limit;
        end if;
    end loop;
end
$$;


-- The ready lanes of some groups: those that have something to claim, or a cursor to move on.
--
-- One call per poll. When none is ready and p_sleep_millis is given, the bells of p_queues are set: somebody
-- sleeps for that long. May report a lane that turns out empty; never leaves one out for good. Of a queue with a pace or with
-- limit keys (is_paced) it reports what its gate would let through now, see docs/design/limits.md; jobs that the gate holds
-- back set no bell.
--
-- Errors: JQ030 foreign cluster.
create function forebay.ready_v1(p_group_ids bigint[], p_sleep_millis integer default null)
returns table (group_id bigint, lane bigint, queue text, priority integer, is_private boolean, is_suspect boolean, is_paced boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_places  forebay._place[];
    v_moved   boolean[];
    v_now     pg_snapshot;
    v_last    bigint;
    v_seal_id bigint;
    v_hi      bigint;
    v_before  xid8;
    v_tail    bigint[];
    v_segment bigint;
    v_until   bigint;
    v_gates   bigint[] := '{}';
    v_shut    bigint[] := '{}';
    v_any     boolean;
    v_row     record;
begin
    if not forebay._is_home() then
        perform forebay._require_home();
    end if;
    if pg_sequence_last_value('forebay.gate_seq') is not null then
        v_gates := array(select g.group_id from forebay.queue_group g
                         where g.group_id = any (p_group_ids) and g.paused_at is null
                           and (exists (select from forebay.queue_pace p where p.queue = g.queue)
                                or exists (select from forebay.lane i where i.queue = g.queue and i.part >= 1000)));
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    select f.segment_id, i.hi into v_seal_id, v_hi
    from forebay.seal f join forebay.segment i using (segment_id) order by f.segment_id desc limit 1;
    v_tail := array(
        select s.segment_id from forebay.segment s
        where s.lo >= coalesce(v_hi, 0) and s.lo <= v_last
        order by s.lo);
    -- The last sealed segment is asked too, so that a quiet lane is not called ready at each new seal.
    select f.xid into v_before from forebay.seal f where f.segment_id = v_seal_id - 1;
    if v_seal_id is not null then
        v_tail := v_seal_id || v_tail;
    end if;

    -- A lane has moved when there is a window in hand, or when it is so far behind that the claim has to look.
    select array_agg(row(p.group_id, p.lane, p.queue, p.priority, p.audience, p.snap, p.claimed_at)::forebay._place),
           array_agg(p.in_hand or coalesce(v_before > pg_snapshot_xmax(p.snap), false)),
           pg_current_snapshot()
    into v_places, v_moved, v_now
    from (select g.group_id, l.lane, l.queue, l.priority, l.audience, b.claimed_at, b.snap_to is not null as in_hand,
                 coalesce(b.snap_from, case l.audience when 0 then g.start_after else '1:1:' end) as snap
          from forebay.queue_group g
          join lateral (
              select distinct i.lane, i.queue, i.priority, i.audience
              from forebay.lane i
              where i.queue = g.queue and i.part < 1000 and i.audience in (0, g.group_id, -g.group_id)) l on true
          left join lateral (
              select c.snap_from, c.snap_to, c.claimed_at
              from forebay.batch c
              where c.group_id = g.group_id and c.lane = l.lane
              order by c.no desc limit 1) b on true
          where g.group_id = any (p_group_ids) and g.paused_at is null) p;

    foreach v_segment in array v_tail loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2)' into v_moved using v_places, v_moved;
    end loop;

    return query
    select p.group_id, p.lane, p.queue, p.priority, p.audience <> 0, p.audience < 0, false
    from rows from (unnest(v_places), unnest(v_moved)) with ordinality
         as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved, nr)
    where p.group_id <> all (v_gates) and case
        when p.moved then true
        -- A late committer of an older segment: let the claim look.
        when pg_snapshot_xmin(p.snap) <> pg_snapshot_xmax(p.snap) and v_before > pg_snapshot_xmin(p.snap)
             and exists (select from pg_snapshot_xip(p.snap) x where x < v_before and pg_visible_in_snapshot(x, v_now)) then true
        else forebay._should_move(p.snap, v_now, p.claimed_at) end;
    v_any := found;

    if v_gates <> '{}' then
        for v_row in select * from forebay._ready_at_gates(v_gates, v_places, v_moved, v_now, v_before) loop
            if v_row.lane is null then
                v_shut := v_shut || v_row.group_id;
                continue;
            end if;
            return query select v_row.group_id, v_row.lane, v_row.queue, v_row.priority, v_row.audience <> 0, v_row.audience < 0, true;
            v_any := true;
        end loop;
    end if;

    if not v_any and p_sleep_millis is not null then
        perform set_config('synchronous_commit', 'off', true);  -- A register is written to the WAL, and nobody waits for it.
        if not forebay._is_home() then
            perform forebay._note_home();
        end if;
        v_until := (extract(epoch from clock_timestamp()) * 1000)::bigint + p_sleep_millis;
        perform setval(bell.register, v_until)
        from (select distinct forebay._bell(g.queue) as register
              from forebay.queue_group g where g.group_id = any (p_group_ids) and g.group_id <> all (v_shut)) bell
        where coalesce(pg_sequence_last_value(bell.register), 0) < v_until;
    end if;
end
$$;


-- Should an idle cursor move although nothing was found?
--
-- Yes when a writer that began after the cursor is still at work, at most once a second: from the next
-- window on its uncommitted rows are not walked over, however many they are.
create function forebay._should_move(p_from pg_snapshot, p_now pg_snapshot, p_moved_at timestamptz) returns boolean
language plpgsql stable
as $$
begin
    return pg_snapshot_xmin(p_now) <> pg_snapshot_xmax(p_now)
       and (p_moved_at is null or p_moved_at < forebay._now() - interval '1 second')
       and exists (select from pg_snapshot_xip(p_now) x where x >= pg_snapshot_xmax(p_from));
end
$$;


-- Take at most p_limit jobs of one lane for a lease; returns them in order as JSON arrays between commas, offset 1 first,
-- or null for none. Without brackets around, since a text cannot grow over 1 GB: see forebay._job_json().
--
-- Invariants: "commit is the gate", "once per lease", "flat cost" (docs/design/engine.md).
-- Jobs past their expiry and cancelled ones are skipped and recorded, expired ones as dead letters.
-- Of suspects one is taken at a time.
--
-- Parameters:
--   p_lease_id, p_claim_no  the batch's name; claim_no is counted by the worker from 1 and never reused
--   p_floor                 the oldest claim_no of the lease that is still open, this one when none is
--   p_group_id, p_lane      as reported by ready_v1
--   p_limit                 1 to 10000
-- Jobs with ordering keys come one key after another or mixed, each key's in its order, with the key as one more element. The
-- holder works a key's jobs one at a time, those of an earlier claim of the lease first, and when one of them goes on it
-- hands back all behind it.
-- Errors: JQ001 a bad number, floor or limit, 54000 the jobs' text would pass 1 GB: ask for fewer, JQ010 the lease is closed, JQ012 not called alone, JQ014 no such group,
--   JQ030 foreign cluster.
-- Locks, in order: the group's gate (of a queue with a pace or limit keys only), the lane's advisory key, the group's key of ordering keys (for these only), the lease (KEY SHARE).
-- Commits asynchronously: a durable settlement makes the earlier claim durable.
create function forebay.claim_v1(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_segment bigint;
    v_jobs    text;
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        raise exception using errcode = 'JQ001', message = format('limit %s is outside 1 to 10000', coalesce(p_limit::text, 'null'));
    end if;
    if (p_claim_no >= 1 and p_floor between 0 and p_claim_no) is not true then
        raise exception using errcode = 'JQ001',
            message = format('claim %s with floor %s: the number is at least 1, the floor at most the number',
                             coalesce(p_claim_no::text, 'null'), coalesce(p_floor::text, 'null'));
    end if;
    -- Expressions instead of PERFORM, and the test before the call: a statement costs more than either.
    if (forebay._is_alone() and pg_sequence_last_value('forebay.gate_seq') is null) is not true then
        perform forebay._require_alone('forebay.claim_v1()');
        if exists (select from forebay.lane l
                   where l.lane = p_lane
                     and (l.part >= 1000 or exists (select from forebay.queue_pace p where p.queue = l.queue))) then
            return forebay._claim_at_gate(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
        end if;
    end if;
    if set_config('synchronous_commit', 'off', true) is null
       or pg_advisory_xact_lock(forebay._lock_class(), hashint8(p_group_id # p_lane)) is null then
        raise exception 'unreachable';
    end if;
    -- Two conditions, since one with a query in it is a statement even where the query is not asked.
    if pg_sequence_last_value('forebay.key_seq') is not null then
        if exists (select from forebay.lane l where l.lane = p_lane and l.part < 0) then
            return forebay._claim_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
        end if;
    end if;
    -- Where the window in hand goes on, else the newest segment: nearly always all jobs lie there.
    v_segment := coalesce(
        (select case when b.snap_to is not null then b.pos_segment end from forebay.batch b
         where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1),
        (select s.segment_id from forebay.segment s
         where s.lo <= pg_sequence_last_value('forebay.log_seq') order by s.lo desc limit 1));
    if v_segment is not null then
        execute 'select forebay._take_' || v_segment || '($1, $2, $3, $4, $5, $6)'
            into v_jobs
            using p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit;
    end if;
    if v_jobs is null then
        select string_agg(forebay._job_json(
                   u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.max_attempts, u.pauses, u.kind, u.args,
                   u.tag, u.correlation_id, u.headers), ',' order by u.ordinality)
        into v_jobs
        from unnest(forebay._take(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, false)) with ordinality u;
    end if;
    return v_jobs;
end
$$;


-- The claim itself, shared with the sweep: with p_sweep it takes nothing, and stops before the first
-- job that still can run. Null: it did not look, since the group is paused or the lane unknown.
create function forebay._take(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer,
    p_sweep boolean)
returns forebay.log[]
language plpgsql volatile
as $$
declare
    c          record;
    v_from     pg_snapshot;              -- the window in hand
    v_to       pg_snapshot;
    v_limit    integer := p_limit;
    v_window   record;
    v_rows     forebay.log[] := '{}';
    v_segments bigint[] := '{}';
    v_looked   integer := 0;
    v_old      integer := 0;             -- how many of the rows belong to the window in hand
    v_count    integer;                  -- how many rows this call disposes of
    v_verdicts "char"[];                 -- e expired, E expired and already a dead letter, c cancelled, null to be run
    v_taken    forebay.log[];
    v_seqs     bigint[];
    v_xids     xid8[];
    v_skipped  bigint[];
    v_as       "char"[];
    v_high     bigint;
    v_used_up  boolean;
    v_tombstones boolean;
    v_buried   bigint;
begin
    perform pg_advisory_xact_lock(forebay._lock_class(), hashint8(p_group_id # p_lane));

    -- A later statement than the lock: its snapshot sees whatever the last holder committed.
    select pg_current_snapshot() as now, forebay._now() as at,
           g.start_after, g.queue, g.paused_at, l.audience, l.priority,
           f.xid as seal_xid,
           array(select s.segment_id from forebay.segment s
                 where s.lo >= coalesce(f.hi, 0) and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
                 order by s.lo) as unsealed,
           b.no, b.snap_from, b.snap_to, b.pos_segment, b.pos_xid, b.pos_seq, b.high_seq,
           b.handed_total, b.skipped_total, b.claimed_at, w.start, w.stop,
           case when b.snap_to is null or pg_snapshot_xmin(w.start) = pg_snapshot_xmax(w.start) then '{}'
                else array(select x from pg_snapshot_xip(w.start) x where pg_visible_in_snapshot(x, w.stop) order by x)
           end as late_in_hand,
           case when pg_snapshot_xmin(w.stop) = pg_snapshot_xmax(w.stop) then '{}'
                else array(select x from pg_snapshot_xip(w.stop) x
                           where pg_visible_in_snapshot(x, pg_current_snapshot()) order by x)
           end as late_in_next
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
        raise exception using errcode = 'JQ014',
            message = format('there is no group %s', p_group_id),
            hint = 'Open the group with forebay.open_group() first.';
    end if;
    if c.audience is null or (c.paused_at is not null and not p_sweep) then
        return null;
    end if;

    v_from := c.start;
    v_to := c.stop;
    if pg_snapshot_xmax(v_to) > pg_snapshot_xmax(c.now) then
        raise exception using errcode = 'JQ030',
            message = format('the cursor of lane %s is ahead of this cluster: xid %s, now %s',
                             p_lane, pg_snapshot_xmax(v_to), pg_snapshot_xmax(c.now)),
            hint = 'This database was restored from another cluster. Run forebay adopt --resume or --discard.';
    end if;
    if c.audience < 0 and not p_sweep then
        v_limit := 1;
    end if;

    -- What is left of the window in hand, then the next one, from its end to now.
    if c.snap_to is not null then
        v_window := forebay._window(p_lane, pg_snapshot_xmax(v_from), v_to, c.late_in_hand, c.pos_segment, c.pos_xid, c.pos_seq, v_limit,
                                    c.unsealed, c.seal_xid);
        v_rows := v_window.rows;
        v_segments := v_window.segments;
        v_looked := v_window.looked;
        v_old := cardinality(v_rows);
    end if;
    if v_old < v_limit then
        v_window := forebay._window(p_lane, pg_snapshot_xmax(v_to), c.now, c.late_in_next, 0, '0', 0, v_limit - v_old, c.unsealed, c.seal_xid);
        v_rows := v_rows || v_window.rows;
        v_segments := v_segments || v_window.segments;
        v_looked := v_looked + v_window.looked;
    end if;
    v_count := cardinality(v_rows);
    v_used_up := v_count < v_limit;
    -- After the rows were read: whoever is among them had written its tombstones.
    v_tombstones := pg_sequence_last_value('forebay.tombstone_seq') is not null;

    if v_count = 0 then
        if c.snap_to is not null or v_looked > 2 or forebay._should_move(v_from, c.now, c.claimed_at) then
            insert into forebay.batch (
                group_id, lane, no, snap_from, pos_segment, pos_xid, pos_seq, high_seq,
                handed_total, skipped_total, claimed_at)
            values (p_group_id, p_lane, coalesce(c.no, 0) + 1, c.now, 0, '0', 0, coalesce(c.high_seq, 0),
                    coalesce(c.handed_total, 0), coalesce(c.skipped_total, 0), c.at);
        end if;
        return '{}';
    end if;

    select array_agg(u.seq order by u.ordinality), array_agg(u.xid order by u.ordinality), max(u.seq),
           array_agg(case when t.reason in ('c', 'r') then 'c'
                          when t.reason = 'e' then 'E'
                          when coalesce(u.expires_at, u.enqueued_at + interval '30 days') <= c.at then 'e'
                     end::"char" order by u.ordinality)
    into v_seqs, v_xids, v_high, v_verdicts
    from unnest(v_rows) with ordinality u
    left join lateral (
        select i.reason from forebay.tombstone i
        where v_tombstones and i.job_id = coalesce(u.job_id, u.seq) and (i.group_id is null or i.group_id = p_group_id)
          and i.reason <> 'k'
        order by i.reason = 'e' desc limit 1) t on true;  -- An expiry outranks a cancellation: its dead letter is written.

    v_taken := v_rows;
    if p_sweep then
        v_count := coalesce(array_position(v_verdicts, null) - 1, v_count);
        if v_count = 0 then
            return '{}';
        end if;
        v_used_up := v_used_up and v_count = cardinality(v_rows);
        v_high := (select max(s) from unnest(v_seqs[:v_count]) s);
    end if;
    if p_sweep or v_verdicts[1] is not null or array_position(v_verdicts, 'c') is not null
       or array_position(v_verdicts, 'e') is not null or array_position(v_verdicts, 'E') is not null then
        select array_agg((u.r).seq order by u.nr) filter (where u.verdict is not null),
               array_agg(lower(u.verdict)::"char" order by u.nr) filter (where u.verdict is not null),
               array_agg((u.r).seq order by u.nr) filter (where u.verdict is null),
               array_agg((u.r).xid order by u.nr) filter (where u.verdict is null),
               array_agg(u.r order by u.nr) filter (where u.verdict is null),
               count(forebay._bury(p_group_id, c.queue, c.priority, u.r, 'expired', coalesce((u.r).attempt, 0)))
                   filter (where u.verdict = 'e')
        into v_skipped, v_as, v_seqs, v_xids, v_taken, v_buried
        from (select unnest(v_rows) as r, unnest(v_verdicts) as verdict, generate_subscripts(v_rows, 1) as nr) u
        where u.nr <= v_count;
    end if;
    if v_xids[1] = all (v_xids) then
        v_xids := v_xids[:1];
    end if;
    if v_tombstones and v_seqs is not null then
        perform forebay._follow_up(v_taken);
    end if;

    -- The window that the last row belongs to, or an empty one at now when everything is used up.
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
           coalesce(c.skipped_total, 0) + coalesce(cardinality(v_skipped), 0),
           c.at, v_seqs, v_xids, v_skipped, v_as
    from (select where p_sweep
          union all
          select from (select from forebay.lease i
                       where i.lease_id = p_lease_id and i.closed_at is null
                       for key share) held) fence;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers. Open a new lease.';
    end if;
    return coalesce(v_taken, '{}');
end
$$;


-- Write a dead letter, with the whole error history of the job in this group; returns its id.
create function forebay._bury(
    p_group_id bigint, p_queue text, p_priority integer, p_row forebay.log, p_reason text, p_attempt integer)
returns bigint
language sql volatile
as $$
    insert into forebay.dead_letter (
        group_id, job_id, seq, reason, died_at, queue, priority, enqueued_at, expires_at, attempt, max_attempts,
        kind, args, tag, correlation_id, headers, ordering_key, unique_key, limit_key, errors)
    values (
        p_group_id, coalesce(p_row.job_id, p_row.seq), p_row.seq, p_reason, forebay._now(), p_queue, p_priority,
        p_row.enqueued_at, coalesce(p_row.expires_at, p_row.enqueued_at + interval '30 days'), p_attempt,
        p_row.max_attempts, p_row.kind, p_row.args, p_row.tag, p_row.correlation_id, p_row.headers,
        p_row.ordering_key, p_row.unique_key, (select l.limit_key from forebay.lane l where l.lane = p_row.lane limit 1),
        coalesce((select jsonb_agg(jsonb_build_object(
                             'attempt', f.attempt, 'failed_at', f.failed_at, 'outcome', f.outcome,
                             'type', f.error_type, 'message', f.message, 'traceback', f.traceback, 'worker', f.worker)
                         order by f.failed_at)
                  from forebay.failure f
                  where f.job_id = coalesce(p_row.job_id, p_row.seq) and f.group_id = p_group_id
                    and f.enqueued_at = p_row.enqueued_at), '[]'))
    returning dead_id
$$;
