-- The claim of a keyed lane: the counterpart of forebay._take().
--
-- Invariant "order by key": of a group's jobs with one key, only one lease has any in live batches, and in their order by the
-- numbers of its claims. A key run takes the first of the waiting jobs, in this order: requeued, parked, new to the cursor.
-- All key runs of a group are decided under one lock. While jobs of a key wait, something will make a claim look at the key again:
-- an open key run, a job in a new row in one of the group's lanes, or an unread recheck row.
--
-- A paused key is taken for every lease; see forebay._hold_keys().
--
-- A job with a limit key too needs a permit of that key, when its turn in the ordering key has come. If it gets none and no job of the
-- ordering key is with a lease, it becomes the first requeued one and waits for a turn of the limit key, which a recheck row passes on.
-- Jobs that wait in a worker behind others of their ordering key would use slots of the limit key: they get some only while half of
-- them stay free.
--
-- Parameters: v, the group's limiter, whose lock is held; null: the queue has no limits on starts and no paused limit key.
-- A lease that has a key gets more of its jobs while none of them must run again, and while at most v_ahead of those it has are
-- open. v_ahead grows with the request: jobs behind a slow one should stay in the log, where they can be cancelled.
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
    v_ahead    constant integer := greatest(50, 3 * p_limit);  -- a lease with more open jobs of a key gets no more of it
    v_window   record;
    v_rows     forebay.log[] := '{}';
    v_segments bigint[] := '{}';
    v_looked   integer := 0;
    v_bytes    bigint := 0;              -- size of the rows
    v_old      integer := 0;
    v_count    integer;
    v_used_up  boolean;
    v_found    record;                   -- jobs that may be taken, and their keys, as arrays
    v_taken    record;                   -- jobs taken and skipped
    v_tombstones boolean;
    v_holds      boolean;                -- a dead letter held its key once
    v_parks      boolean;                -- a job was parked once
    v_is_plain   boolean := false;
    v_parked_no  bigint;                 -- see batch.parked_no
    v_public   bigint[];                 -- the queue's keyed public lanes
    v_paused   text[] := '{}';           -- paused keys, and the ends of the pauses
    v_ends     timestamptz[];
    v_held     bigint[] := '{}';         -- rows of paused keys that were requeued
    v_read     forebay.log[];            -- all rows that were read
    v_names    text[] := '{}';           -- the limit keys of these, and their states,
    v_states   forebay._limit_state[];
    v_shut     text[];                   --   the paused ones of them, and the ends of the pauses
    v_shut_ends timestamptz[];
    v_fits     text;                     -- whether the limit keys let all rows of the lane through: all, first (one of each ordering key), none
    v_turns    text[] := '{}';           -- limit keys that passed their turn on, and the jobs that waited for it
    v_turn_of  bigint[] := '{}';
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
           array(select s.segment_id from forebay.segment s
                 where s.lo >= coalesce(f.hi, 0) and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
                 order by s.lo) as unsealed,
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
        v_rows := v_window.rows;
        v_segments := v_window.segments;
        v_looked := v_window.looked;
        v_old := cardinality(v_rows);
        v_bytes := v_window.bytes;
    end if;
    if v_old < v_most and v_bytes < forebay._claim_bytes() then
        v_window := forebay._window_keyed(p_lane, c.stop, c.low_to, c.edge_to, c.now, 0, 0, v_most - v_old, c.unsealed, c.seal_xid, forebay._claim_bytes() - v_bytes);
        v_rows := v_rows || v_window.rows;
        v_segments := v_segments || v_window.segments;
        v_looked := v_looked + v_window.looked;
        v_bytes := v_bytes + v_window.bytes;
    end if;
    v_count := cardinality(v_rows);
    v_used_up := v_count < v_most and v_bytes < forebay._claim_bytes();
    -- After the rows were read: the transaction that wrote one of them has already written its tombstones.
    v_tombstones := pg_sequence_last_value('forebay.tombstone_seq') is not null;

    if v_count = 0 then
        if c.snap_to is not null or v_looked > 2 or forebay._should_move(c.start, c.now, c.claimed_at) or forebay._is_old_cursor(c.start) then
            insert into forebay.batch (
                group_id, lane, no, snap_from, pos_segment, pos_xid, pos_seq, high_seq,
                handed_total, skipped_total, claimed_at, edge_from, low_from)
            values (p_group_id, p_lane, coalesce(c.no, 0) + 1, c.now, 0, '0', 0, coalesce(c.high_seq, 0),
                    coalesce(c.handed_total, 0), coalesce(c.skipped_total, 0), c.at, pg_current_xact_id(), v_low);
        end if;
        return '{}';
    end if;

    -- From here on no other session decides about the group's keys, and later statements see earlier decisions.
    perform forebay._lock_keys(p_group_id, false);
    v_holds := pg_sequence_last_value('forebay.hold_seq') is not null;
    v_parks := pg_sequence_last_value('forebay.parked_seq') is not null;

    if pg_sequence_last_value('forebay.key_pause_seq') is not null then
        -- A later statement than the one that read the lane: it sees the call that appended a recheck row that was read.
        select p.keys, p.ends into v_paused, v_ends
        from forebay._paused_keys(c.queue, 'ordering', array(select u.ordering_key from unnest(v_rows) u), c.at) p;
        if v_paused <> '{}' then
            v_held := forebay._hold_keys(p_group_id, c.queue, c.priority, c.audience, v_paused, v_ends, v_rows, c.at);
        end if;
    end if;

    if v.at is not null then
        v_names := array(select distinct u.limit_key from unnest(v_rows) u where u.limit_key is not null);
    end if;
    if v_names <> '{}' and c.audience = 0 then
        select m.states, m.paused, m.ends into v_states, v_shut, v_shut_ends from forebay._limits_met(p_group_id, c.queue, v_names, v) m;
        select case when v.seed_until >= v.at then 'none'
                    when bool_and(s.waiting = 0 and n.jobs <= s.permits - forebay._reserve(s.concurrency)) then 'all'
                    when bool_and(s.waiting = 0 and n.jobs <= s.permits) then 'first'
                    else 'none' end
        into v_fits
        from unnest(v_states) s
        join (select u.limit_key, count(*) as jobs from unnest(v_rows) u group by u.limit_key) n on n.limit_key = s.limit_key;
    end if;

    -- Nearly always each key is free or belongs to this lease, no job of it waits or runs again, and all rows read are taken.
    if c.audience = 0 and v_paused = '{}' and v_fits is distinct from 'none' then
        with met as materialized (
            select u.ordering_key as key, u.ordinality::smallint as place, u.seq, u.xid, u.limit_key, coalesce(u.job_id, u.seq) as job_id,
                   coalesce(u.expires_at, u.enqueued_at + interval '30 days') as expires
            from unnest(v_rows) with ordinality u
        ), met_all as materialized (
            select array_agg(m.seq) as seqs, array_agg(m.xid) as xids, array_agg(m.key) as keys, max(m.seq) as high, min(m.expires) as expires
            from met m
        ), key as materialized (
            select m.key, min(m.place) as head, max(m.place) as tail, min(m.job_id) as job, min(m.seq) as low, max(m.seq) as high
            from met m group by m.key
        ), several as materialized (
            -- Arrays only of keys with several jobs: an array for each of a thousand keys costs more than to read their states.
            select m.key, array_agg(m.place) as offsets, array_agg(m.job_id) as jobs
            from met m join key k on k.key = m.key where k.tail > k.head group by m.key
        ), last as materialized (
            select k.*, t.no, t.since, t.lease_id, t.claim_no, t.taken_up_to, t.is_suspect,
                   t.has_rest is true
                   or v_parks and exists (select from forebay.parked p
                              where p.group_id = p_group_id and p.ordering_key = k.key and p.parked_no > coalesce(t.taken_up_to, 0))
                   or v_holds and exists (select from forebay.dead_letter d
                                          where d.group_id = p_group_id and d.ordering_key = k.key and d.holds_key) as waits
            from key k
            left join lateral (select i.no, coalesce(i.since, i.no) as since, i.lease_id, i.claim_no, i.taken_up_to, i.is_suspect is true as is_suspect, i.rest_seqs is not null as has_rest
                               from forebay.key_run i
                               where i.group_id = p_group_id and i.ordering_key = k.key
                               order by i.no desc limit 1) t on true
        ), key_run as materialized (
            select l.key, l.no, l.lease_id, l.claim_no, l.is_suspect from last l where l.since = l.no and l.lease_id is not null
            union all
            select l.key, t.no, t.lease_id, t.claim_no, l.is_suspect
            from last l
            cross join lateral (select i.no, i.lease_id, i.claim_no from forebay.key_run i
                                where i.group_id = p_group_id and i.ordering_key = l.key and i.no between l.since and l.no
                                  and i.lease_id is not null offset 0) t
            where l.since < l.no
        ), batch_state as materialized (
            select b.lease_id, b.is_suspect, s.continues, case when s.is_whole then 0 else coalesce(i.size, 0) - s.ended end as open
            from (select t.lease_id, t.claim_no, bool_or(t.is_suspect) as is_suspect from key_run t group by t.lease_id, t.claim_no) b
            cross join lateral (
                select coalesce(bool_or(s.offsets is null), false) as is_whole, coalesce(sum(cardinality(s.offsets)), 0) as ended,
                       coalesce(bool_or(s.outcomes && '{r,l,s,u,h,k,y}'), false) as continues
                from forebay.settlement s where s.lease_id = b.lease_id and s.claim_no = b.claim_no) s
            left join lateral (select cardinality(i.seqs) as size from forebay.batch i
                               where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) i on true
        ), verdict as materialized (
            select not exists (select from last l where l.waits)
               and not exists (select from batch_state b where b.continues or b.open > 0 and (b.lease_id <> p_lease_id or b.is_suspect))
               and coalesce((select sum(b.open) from batch_state b where b.lease_id = p_lease_id), 0) <= v_ahead
               and (select m.expires from met_all m) > c.at
               and (v_fits is distinct from 'first'
                    or (select count(*) from key k) = v_count and not exists (select from batch_state b where b.open > 0))
               and not (v_tombstones and exists (select from forebay.tombstone x where x.job_id = any (array(select m.job_id from met m)))) as is_plain
        ), written as (
            insert into forebay.key_run (
                group_id, ordering_key, no, since, lease_id, claim_no, place, offsets, jobs, taken_up_to, low_seq, high_seq)
            select p_group_id, l.key, coalesce(l.no, 0) + 1, f.no, p_lease_id, p_claim_no, case when l.head = l.tail then l.head end, s.offsets,
                   case when l.head < l.tail then s.jobs when l.job <> l.low then array[l.job] end,
                   nullif(l.taken_up_to, 0), l.low, nullif(l.high, l.low)
            from last l
            left join several s on s.key = l.key
            left join (select t.key, min(t.no) as no from key_run t
                       where t.lease_id = p_lease_id and t.claim_no >= p_floor group by t.key) f on f.key = l.key
            where (select d.is_plain from verdict d)
        )
        select d.is_plain, null::bigint[] as lanes, a.seqs, a.xids, a.keys,
               case when exists (select from several)
                    then (select array_agg(k.tail order by m.place) from met m join key k on k.key = m.key) end as tails,
               (select array_agg(m.limit_key) from met m having bool_or(m.limit_key is not null)) as limit_keys,
               null::text[] as waiting_limits, null::text[] as waiting_keys, null::bigint[] as waiting_nos, null::bigint[] as waiting_lanes, null::xid8[] as waiting_xids,
               null::bigint[] as waiting_seqs, v_count::bigint as fresh, 0::bigint as fresh_skipped, a.high, v_rows as jobs, null::bigint[] as skipped, null::"char"[] as skipped_as
        into v_taken
        from verdict d, met_all a;
        v_is_plain := v_taken.is_plain;
    end if;

    if v_is_plain then
        v_parked_no := coalesce(pg_sequence_last_value('forebay.parked_seq'), 0);
    else
        v_public := array(select l.lane from forebay.lane l where l.queue = c.queue and l.audience = 0 and l.sort = 'keyed');
        with met as materialized (
            select u.ordering_key as key, u.ordinality as nr, u.lane, u.seq, u.kind = '' as is_recheck, coalesce(u.job_id, u.seq) as job_id
            from unnest(v_rows) with ordinality u
            where u.seq <> all (v_held)
        ), stands as materialized (
            select s.*, s.open > 0 as is_busy, s.ordering_key = any (v_paused) as is_paused,
                   s.head is not null
                   and not exists (select from met m where m.key = s.ordering_key and m.job_id = s.head and not m.is_recheck)
                   or s.waits_for is not null and not exists (select from met m where m.key = s.ordering_key and m.is_recheck) as waits,
                   s.open between 1 and v_ahead and s.holder = p_lease_id and not s.is_suspect and c.audience >= 0
                   and s.head is null and s.waiting_seqs = '{}' as continues
            from forebay._key_states(p_group_id, array(select distinct m.key from met m)) s
        ), state as materialized (
            select s.ordering_key as key, s.no, s.taken_up_to, s.head, s.is_busy, s.is_paused, s.waits_for, s.waits_at, s.waiting_lanes, s.waiting_seqs, t.is_taken,
                   case when s.continues then s.first_open else s.no + 1 end as since,
                   greatest(1, v_limit / greatest(1, count(*) filter (where not t.is_taken) over ()))::integer as quota
            from stands s cross join lateral (select s.is_busy and not s.continues or s.waits or s.is_paused as is_taken) t
        ), parked as materialized (
            select s.key, i.parked_no, i.lane, i.seq
            from state s, lateral (
                select p.parked_no, p.lane, p.seq from forebay.parked p
                where p.group_id = p_group_id and p.ordering_key = s.key and p.parked_no > s.taken_up_to
                order by p.parked_no limit s.quota) i
            where not s.is_taken
        ), behind as materialized (
            select p.key, count(*) as jobs from parked p group by p.key
        ), candidate as (
            -- A key's jobs in the order in which they are to be taken. 0: the key's next job, in a new row.
            select s.key, 0 as class, m.nr, m.lane, m.seq, null::bigint as parked_no
            from met m join state s on s.key = m.key
            where m.job_id = s.head and not m.is_recheck and not s.is_busy and not s.is_paused
            union all
            -- 1: requeued. 2: parked.
            select s.key, 1, u.nr, u.lane, u.seq, null
            from state s, unnest(s.waiting_lanes, s.waiting_seqs) with ordinality u (lane, seq, nr)
            where not s.is_taken
            union all
            select p.key, 2, p.parked_no, p.lane, p.seq, p.parked_no from parked p
            union all
            -- 3: new. 4: new, and to be parked: the key is taken, or more jobs come before it than were read.
            select s.key, case when s.is_taken or b.jobs >= s.quota
                                    or c.audience < 0 and (b.jobs > 0 or s.waiting_seqs <> '{}') then 4 else 3 end,
                   m.nr, m.lane, m.seq, null
            from met m join state s on s.key = m.key left join behind b on b.key = m.key
            where m.job_id is distinct from s.head and not m.is_recheck
            union all
            -- 5: returned while other jobs of its key run have not ended, as their holder is about to report; or a suspect of a paused key.
            select s.key, 5, m.nr, m.lane, m.seq, null
            from met m join state s on s.key = m.key
            where m.job_id = s.head and not m.is_recheck and (s.is_busy or s.is_paused)
        ), listed as materialized (
            select x.*, row_number() over (order by x.key, x.class, x.nr) as place from candidate x
        )
        select (select array_agg(x.key order by x.place) from listed x) as keys,
               (select array_agg(x.class order by x.place) from listed x) as classes,
               (select array_agg(x.lane order by x.place) from listed x) as lanes,
               (select array_agg(x.seq order by x.place) from listed x) as seqs,
               (select array_agg(x.parked_no order by x.place) from listed x) as parked,
               (select array_agg(x.lane order by x.place) from listed x where x.class in (1, 2)) as fetch_lanes,
               (select array_agg(x.seq order by x.place) from listed x where x.class in (1, 2)) as fetch_seqs,
               array(select s.key from state s order by s.key) as state_keys,
               array(select s.no from state s order by s.key) as state_nos,
               array(select s.since from state s order by s.key) as state_since,
               array(select s.taken_up_to from state s order by s.key) as state_positions,
               array(select s.is_busy from state s order by s.key) as state_busy,
               -- The job that waits for a turn of its limit key.
               array(select case when s.waits_for is not null then s.waiting_seqs[1] end from state s order by s.key) as state_waiting,
               array(select s.waits_at from state s order by s.key) as state_waits_at
        into v_found;

        v_read := v_rows || forebay._fetch(v_found.fetch_lanes, v_found.fetch_seqs);
        if v.at is not null then
            v_names := array(select distinct u.limit_key from unnest(v_read) u where u.limit_key is not null);
        end if;
        if v_names <> '{}' then
            v_turns := array(select u.limit_key from unnest(v_rows) u where u.kind = '' and u.limit_key is not null);
            v_turn_of := array(select (u.args ->> 'seq')::bigint from unnest(v_rows) u where u.kind = '' and u.limit_key is not null);
            select m.states, m.paused, m.ends into v_states, v_shut, v_shut_ends from forebay._limits_met(p_group_id, c.queue, v_names, v) m;
            if v.seed_until >= v.at then
                -- The states lack claims that were in progress when the limits were set.
                v_states := array(
                    select row(s.limit_key, s.no, s.turn, s.waiting, s.parked_up_to, s.taken_up_to, s.taken_seq, s.taken_jobs, s.is_full, s.tat,
                               s.leases, s.claims, s.offsets, least(s.permits, s.concurrency - coalesce(f.jobs, 0)),
                               s.tokens, s.rate, s.burst, s.concurrency, s.limits_no, s.has_new_limits)::forebay._limit_state
                    from unnest(v_states) s
                    left join (select u.key, count(*) as jobs
                               from forebay._in_flight(p_group_id) i cross join lateral unnest(i.limit_keys) with ordinality u (key, place)
                               where not exists (select from forebay.settlement e
                                                 where e.lease_id = i.lease_id and e.claim_no = i.claim_no and u.place::smallint = any (e.offsets))
                               group by u.key) f on f.key = s.limit_key);
            end if;
        end if;

        with row_of as materialized (
            select u.seq, u.lane, u.xid, coalesce(u.job_id, u.seq) as job_id, u as job,
                   case when n.reason in ('c', 'r') then 'c'
                        when n.reason = 'e' then 'E'
                        when coalesce(u.expires_at, u.enqueued_at + interval '30 days') <= c.at then 'e' end as verdict
            from unnest(v_read) u
            left join lateral (
                select i.reason from forebay.tombstone i
                where v_tombstones and i.job_id = coalesce(u.job_id, u.seq) and (i.group_id is null or i.group_id = p_group_id)
                  and i.reason <> 'k'
                order by i.reason = 'e' desc limit 1) n on true
            where u.kind <> ''
        ), listed as materialized (
            select x.key, x.class, x.nr, x.parked_no, r.lane, r.seq, r.xid, r.job_id, r.job, r.verdict, (r.job).limit_key, s.is_busy, a.may,
                   a.may and r.verdict is null as would,
                   x.class = 1 and r.seq = any (v_turn_of) as is_granted,
                   x.class in (2, 3) and x.lane = any (v_public) as is_fresh,
                   count(*) filter (where a.may and r.verdict is null) over (partition by x.key order by x.nr) as rank
            from unnest(v_found.keys, v_found.classes, v_found.lanes, v_found.seqs, v_found.parked) with ordinality x (key, class, lane, seq, parked_no, nr)
            join row_of r on r.seq = x.seq and r.lane = x.lane
            join unnest(v_found.state_keys, v_found.state_busy) s (key, is_busy) on s.key = x.key
            cross join lateral (select x.class < 4 and (c.audience >= 0 or x.class in (0, 3)) as may) a
        ), limited as materialized (
            -- Jobs that get no permit of their limit key, each counted in the order in which they would be taken.
            select i.key, min(i.nr) as stop
            from (select l.key, l.nr, l.limit_key, l.is_granted, l.rank = 1 and not l.is_busy as is_first,
                         row_number() over (partition by l.limit_key order by l.is_granted desc, l.rank, l.class > 0, l.nr) as place
                  from listed l where l.would and l.limit_key is not null) i
            join unnest(v_states) s on s.limit_key = i.limit_key
            where not i.is_granted and s.waiting > 0 or i.place > s.permits - case when i.is_first then 0 else forebay._reserve(s.concurrency) end
            group by i.key
        ), candidate as materialized (
            select l.*, p.stop, l.may and n.is_before as may_run, l.would and n.is_before as runs
            from listed l left join limited p on p.key = l.key
            cross join lateral (select coalesce(l.nr < p.stop, true) as is_before) n
        ), chosen as materialized (
            -- The first of each key before the second of any. Returned jobs, whose rows have been read, come first, and always: together
            -- they are within the bound.
            select i.key, i.nr, i.lane, i.seq, i.xid, i.job_id, i.job, i.is_fresh, i.place
            from (select w.key, w.class, w.nr, w.lane, w.seq, w.xid, w.job_id, w.job, w.is_fresh, (row_number() over o)::smallint as place,
                         sum(forebay._job_bytes((w.job).args, (w.job).headers)) over (o rows between unbounded preceding and 1 preceding) as bytes
                  from candidate w where w.runs
                  window o as (order by w.rank, w.class > 0, w.nr)
                  order by w.rank, w.class > 0, w.nr limit v_limit) i
            where i.place = 1 or i.class = 0 or i.bytes < forebay._claim_bytes()
        ), reach as materialized (
            -- A key run reaches to the last job taken, or over all skipped jobs when none is to run.
            select s.key, s.no, s.since, s.taken_up_to, h.places, h.jobs, h.low, h.high, i.runs, i.stop, w.at as waits, s.waiting, s.waits_at,
                   coalesce(h.upto, w.at, case when not i.runs then i.upto end) as upto
            from unnest(v_found.state_keys, v_found.state_nos, v_found.state_since, v_found.state_positions, v_found.state_busy,
                        v_found.state_waiting, v_found.state_waits_at) s (key, no, since, taken_up_to, is_busy, waiting, waits_at)
            left join (select x.key, max(x.nr) as upto, array_agg(x.place order by x.nr) as places,
                              array_agg(x.job_id order by x.nr) as jobs, min(x.seq) as low, max(x.seq) as high
                       from chosen x group by x.key) h on h.key = s.key
            left join (select x.key, max(x.nr) filter (where x.may_run) as upto, bool_or(x.runs) as runs, min(x.stop) as stop
                       from candidate x group by x.key) i on i.key = s.key
            -- With no job of the key in a worker, the job that got no permit waits for a turn of its limit key.
            cross join lateral (select case when not s.is_busy and not i.runs and c.audience >= 0 then i.stop end as at) w
        ), rest as materialized (
            select i.key, max(i.parked_no) filter (where i.nr <= t.upto) as taken_up_to,
                   array_agg(i.lane order by i.nr) filter (where i.nr > t.upto and i.class = 1 or i.nr = t.waits) as lanes,
                   array_agg(i.seq order by i.nr) filter (where i.nr > t.upto and i.class = 1 or i.nr = t.waits) as seqs,
                   min(i.seq) filter (where i.class = 1 or i.nr = t.waits) as low, max(i.seq) filter (where i.class = 1 or i.nr = t.waits) as high
            from candidate i join reach t on t.key = i.key
            where t.upto is not null
            group by i.key
        ), waiting as materialized (
            -- It may wait already: its row there is not taken.
            select i.key, i.limit_key, i.lane, i.xid, i.seq, i.nr, w.is_new, case when w.is_new then nextval('forebay.limit_parked_seq') else t.waits_at end as parked_no
            from candidate i join reach t on t.key = i.key and i.nr = t.waits
            join unnest(v_states) s on s.limit_key = i.limit_key
            cross join lateral (select i.seq is distinct from t.waiting or t.waits_at <= s.taken_up_to as is_new) w
        ), key_run as (
            insert into forebay.key_run (
                group_id, ordering_key, no, since, lease_id, claim_no, offsets, jobs, taken_up_to, rest_lanes, rest_seqs, waits_for, waits_at, low_seq, high_seq,
                is_suspect)
            select p_group_id, t.key, t.no + 1, t.since, case when t.places is not null then p_lease_id end,
                   case when t.places is not null then p_claim_no end, t.places, t.jobs, greatest(t.taken_up_to, r.taken_up_to), r.lanes, r.seqs, w.limit_key, w.parked_no,
                   coalesce(least(t.low, r.low), 0), coalesce(greatest(t.high, r.high), 0), c.audience < 0
            from reach t join rest r on r.key = t.key left join waiting w on w.key = t.key
        ), parking as (
            insert into forebay.parked (group_id, ordering_key, lane, seq)
            select p_group_id, i.key, i.lane, i.seq
            from candidate i join reach t on t.key = i.key
            where i.class = 4 or i.class = 3 and i.nr > coalesce(t.upto, 0) and not (c.audience < 0 and i.nr = t.stop)
            order by i.nr
        ), skipped as materialized (
            select i.nr, i.seq, i.job, i.verdict, i.is_fresh from candidate i join reach t on t.key = i.key and i.nr <= t.upto
            where i.may_run and i.verdict is not null
        )
        select (select array_agg(i.lane order by i.place) from chosen i) as lanes,
               (select array_agg(i.seq order by i.place) from chosen i) as seqs,
               (select array_agg(i.xid order by i.place) from chosen i) as xids,
               (select array_agg(i.key order by i.place) from chosen i) as keys,
               (select array_agg(i.places[cardinality(i.places)] order by o.place)
                from chosen o join reach i on i.key = o.key) as tails,
               (select array_agg((i.job).limit_key order by i.place) from chosen i having bool_or((i.job).limit_key is not null)) as limit_keys,
               (select max(u.seq) from (select i.seq from candidate i union all select r.seq from unnest(v_rows) r) u) as high,
               (select array_agg(i.job order by i.place) from chosen i) as jobs,
               (select count(*) from chosen i where i.is_fresh) as fresh, (select count(*) from skipped i where i.is_fresh) as fresh_skipped,
               (select array_agg(i.seq order by i.nr) from skipped i) as skipped,
               (select array_agg(lower(i.verdict)::"char" order by i.nr) from skipped i) as skipped_as,
               (select array_agg(forebay._write_dead_letter(p_group_id, c.queue, c.priority, i.job, 'expired', coalesce((i.job).attempt, 0)) order by i.nr)
                from skipped i where i.verdict = 'e') as dead,
               (select count(forebay._append_again(c.queue, p_group_id, c.priority, i.job, c.at + case when i.key = any (v_paused) and c.audience < 0 then interval '10 seconds'
                                                                  when i.nr = i.stop then interval '1 second'
                                                                  else interval '0.2 seconds' end))
                from candidate i where i.class = 5 or c.audience < 0 and i.nr = i.stop) as appended_again,
               (select array_agg(w.limit_key order by w.nr) from waiting w where w.is_new) as waiting_limits,
               (select array_agg(w.key order by w.nr) from waiting w where w.is_new) as waiting_keys,
               (select array_agg(w.parked_no order by w.nr) from waiting w where w.is_new) as waiting_nos,
               (select array_agg(w.lane order by w.nr) from waiting w where w.is_new) as waiting_lanes,
               (select array_agg(w.xid order by w.nr) from waiting w where w.is_new) as waiting_xids,
               (select array_agg(w.seq order by w.nr) from waiting w where w.is_new) as waiting_seqs,
               -- No job of these keys is taken, and more may wait than were read, or their first jobs did not fit into the claim.
               array(select i.key from reach i where i.places is null and i.waits is null and (i.upto is not null or i.runs)) as again
        into v_taken;
        if v_taken.again <> '{}' then
            perform forebay._announce_keys(c.queue, c.priority, p_group_id, v_taken.again);
        end if;
        if v_taken.dead is not null then
            perform forebay._report_deaths(v_taken.dead);
        end if;
        if v_holds then
            -- The redriven job has its place: the dead letter holds the key no longer.
            update forebay.dead_letter d set holds_key = false
            from unnest(v_rows) r
            where d.group_id = p_group_id and d.ordering_key = r.ordering_key and d.holds_key and d.redriven_as = coalesce(r.job_id, r.seq)
              and (r.seq = any (v_taken.seqs) or r.seq = any (v_taken.skipped) or r.seq = any (v_taken.waiting_seqs));
        end if;
    end if;
    if v_names <> '{}' then
        perform forebay._record_keyed_limits(
            v, c.queue, c.priority, p_group_id, p_lease_id, p_claim_no, v_states, v_shut, v_shut_ends,
            v_taken.limit_keys, v_taken.seqs, v_turns,
            v_taken.waiting_limits, v_taken.waiting_keys, v_taken.waiting_nos, v_taken.waiting_lanes, v_taken.waiting_xids, v_taken.waiting_seqs);
    end if;

    if v_tombstones and v_taken.seqs is not null then
        perform forebay._follow_up(v_taken.jobs, p_group_id);
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
    return coalesce(v_taken.jobs, '{}');
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
