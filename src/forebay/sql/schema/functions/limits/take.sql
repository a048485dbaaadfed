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
    v_plan    record;
    v_pieces  record;
    v_is_plain boolean := false;
    v_used    integer;                   -- how many of the items are used
    v_rows    forebay.log[];
    v_nrs     bigint[];
    v_taken   record;
    v_after   record;
    v_granted record;                    -- pieces of jobs with ordering keys, as arrays
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
        into v_pieces
        from (select u.*, row_number() over (order by u.key_at, u.ordinality) as nr, sum(u.jobs) over (partition by u.limit_key) as of_key
              from (select r.*, min(r.ordinality) over (partition by r.limit_key) as key_at, sum(r.jobs) over (order by r.ordinality) as up_to
                    from unnest(v_items) with ordinality r) u
              where u.up_to <= v_limit) i
        join unnest(v_states) s on s.limit_key = i.limit_key;
        if v_pieces.is_plain then
            v_used := v_pieces.used;
            select f.nrs, f.jobs into v_nrs, v_rows
            from forebay._fetch_limited(v_pieces.nrs, v_pieces.lanes, v_pieces.xids, v_pieces.afters, v_pieces.seqs_to, v_pieces.takes) f;
            v_is_plain := (select sum(forebay._job_bytes(r.args, r.headers)) from unnest(v_rows) r) < forebay._claim_bytes();
        end if;
    end if;

    select null::bigint[] as nrs, null::text[] as keys, null::text[] as limit_keys, null::bigint[] as seqs into v_granted;
    if not v_is_plain then
        -- How many items are used, and how many jobs each key gets: first an even part, then what is left in the order of the turns.
        with item as materialized (
            select i.jobs, i.turn, i.ordinality as pos, k.nr
            from unnest(v_items) with ordinality i
            join unnest(v_keys) with ordinality k (key, nr) on k.key = i.limit_key
        ), state as materialized (
            select s.ordinality as nr, case when v_suspect then 0 else s.waiting end as waiting, s.turn, greatest(s.permits, 0) as permits
            from unnest(v_states) with ordinality s
        ), met as materialized (
            select s.nr, s.waiting, s.permits,
                   min(i.pos) filter (where i.jobs = 0 and s.waiting > 0 and (i.turn is null or i.turn = s.turn & 2147483647)) as turn_at,
                   min(i.pos) filter (where i.jobs > 0) as first_at
            from state s join item i on i.nr = s.nr
            group by s.nr, s.waiting, s.permits
        ), cut as materialized (
            select coalesce((select c.at - 1
                             from (select case when m.waiting > 0 then m.turn_at else m.first_at end as at from met m where m.permits > 0) c
                             where c.at is not null order by c.at offset v_limit limit 1), cardinality(v_items))::integer as at
        ), wish as materialized (
            select m.nr, coalesce(m.turn_at <= c.at, false) as has_turn, least(coalesce(m.turn_at, m.first_at), coalesce(m.first_at, m.turn_at)) as at,
                   least(m.permits, case when m.waiting = 0 then coalesce(n.jobs, 0)
                                         when m.turn_at <= c.at then m.waiting + coalesce(n.jobs, 0) else 0 end) as jobs
            from met m cross join cut c
            left join lateral (select sum(i.jobs) as jobs from item i where i.nr = m.nr and i.pos <= c.at) n on true
        ), part as materialized (
            select w.nr, w.jobs, w.at, least(w.jobs, q.quota) as first
            from wish w, (select greatest(1, v_limit / greatest(1, count(*) filter (where u.jobs > 0))) as quota from wish u) q
        ), given as materialized (
            select p.nr, p.first + least(p.jobs - p.first, greatest(0, v_limit - sum(p.first) over ()
                - coalesce(sum(p.jobs - p.first) over (order by p.at, p.nr rows between unbounded preceding and 1 preceding), 0))) as jobs, p.at
            from part p
        )
        select (select c.at from cut c) as used,
               (select array_agg(g.jobs::bigint order by g.nr) from given g) as jobs,
               (select array_agg(g.at order by g.nr) from given g) as places,
               (select array_agg(w.has_turn order by w.nr) from wish w) as has_turn
        into v_plan;

        -- The pieces of runs to take: of each key its parked ones, then those just read.
        with key as materialized (
            select k.nr, k.jobs, k.at, k.has_turn, s.limit_key, s.parked_up_to, s.taken_up_to, s.taken_seq, s.taken_jobs
            from unnest(v_plan.jobs, v_plan.places, v_plan.has_turn) with ordinality k (jobs, at, has_turn, nr)
            join unnest(v_states) with ordinality s on s.ordinality = k.nr
            where k.jobs > 0
        ), piece as (
            select k.nr, k.jobs as most, k.at, 1 as class, p.parked_no as place, p.lane, p.xid,
                   case when p.is_first then greatest(p.seq - 1, k.taken_seq) else p.seq - 1 end as after, p.seq_to,
                   p.jobs - case when p.is_first then k.taken_jobs else 0 end as jobs, p.ordering_key
            from key k cross join lateral (
                select i.*, row_number() over (order by i.parked_no) = 1 as is_first
                from forebay.limit_parked i
                where i.group_id = p_group_id and i.limit_key = k.limit_key and i.parked_no > k.taken_up_to and i.parked_no <= k.parked_up_to
                order by i.parked_no limit k.jobs) p
            where k.has_turn
            union all
            select k.nr, k.jobs, k.at, 2, i.ordinality, i.lane, i.xid, i.seq - 1, i.seq_to, i.jobs, null
            from key k join unnest(v_items) with ordinality i on i.limit_key = k.limit_key
            where i.jobs > 0 and i.ordinality <= v_plan.used
        ), chosen as materialized (
            select p.*, row_number() over (order by p.at, p.nr, p.class, p.place) as piece_no, least(p.jobs, p.most - p.before) as take
            from (select q.*, coalesce(sum(q.jobs) over (partition by q.nr order by q.class, q.place rows between unbounded preceding and 1 preceding), 0) as before
                  from piece q) p
            where p.before < p.most
        )
        select coalesce(array_agg(c.piece_no order by c.piece_no), '{}') as nrs, array_agg(c.nr order by c.piece_no) as keys,
               array_agg(c.class order by c.piece_no) as classes, array_agg(c.place order by c.piece_no) as places,
               array_agg(c.lane order by c.piece_no) as lanes, array_agg(c.xid order by c.piece_no) as xids,
               array_agg(c.after order by c.piece_no) as afters, array_agg(c.seq_to order by c.piece_no) as seqs_to,
               array_agg(c.jobs::bigint order by c.piece_no) as jobs, array_agg(c.take::bigint order by c.piece_no) as takes,
               coalesce(array_agg(c.ordering_key order by c.piece_no), '{}') as ordering_keys
        into v_pieces
        from chosen c;
        v_used := v_plan.used;
        select array_agg(u.nr) as nrs, array_agg(u.ordering_key) as keys, array_agg(v_keys[u.key]) as limit_keys, array_agg(u.seq) as seqs
        into v_granted
        from unnest(v_pieces.nrs, v_pieces.ordering_keys, v_pieces.keys, v_pieces.seqs_to) u (nr, ordering_key, key, seq)
        where u.ordering_key is not null;
        select f.nrs, f.jobs into v_nrs, v_rows
        from (select array_agg(u.nr) as nrs, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.after) as afters,
                     array_agg(u.seq_to) as seqs_to, array_agg(u.take) as takes
              from unnest(v_pieces.nrs, v_pieces.lanes, v_pieces.xids, v_pieces.afters, v_pieces.seqs_to, v_pieces.takes, v_pieces.ordering_keys)
                   u (nr, lane, xid, after, seq_to, take, ordering_key)
              where u.ordering_key is null) u
        cross join lateral forebay._fetch_limited(u.nrs, u.lanes, u.xids, u.afters, u.seqs_to, u.takes) f;
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
              select u.nr, null, u.key, u.seq, u.limit_key
              from unnest(v_granted.nrs, v_granted.keys, v_granted.seqs, v_granted.limit_keys) u (nr, key, seq, limit_key)) r
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
        perform forebay._follow_up(v_taken.jobs, p_group_id);
    end if;

    if v_suspect then
        if v_pieces.nrs = '{}' then
            perform forebay._continue_job(r, r.lane, coalesce(r.attempt, 0), coalesce(r.pauses, 0),
                                          v.at + case when v_items[1].limit_key = any (v_paused) then interval '10 seconds' else interval '1 second' end)
            from forebay._row(v_items[1].lane, v_items[1].xid, v_items[1].seq) r;
            perform forebay._record_row_left(v_here.queue, p_group_id, v_here.priority, forebay._row(v_items[1].lane, v_items[1].xid, v_items[1].seq), 'm');
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
        with piece as materialized (
            select p.key, p.class, p.place, p.jobs, coalesce(k.jobs, 0) as kept, k.seq,
                   row_number() over (partition by p.key, p.class order by p.place) = 1 as is_first
            from unnest(v_pieces.nrs, v_pieces.keys, v_pieces.classes, v_pieces.places, v_pieces.jobs) p (piece_no, key, class, place, jobs)
            left join unnest(v_taken.kept_nrs, v_taken.kept_jobs, v_taken.kept_seqs) k (piece_no, jobs, seq) on k.piece_no = p.piece_no
        ), parking as (
            insert into forebay.limit_parked (group_id, limit_key, lane, xid, seq, seq_to, jobs)
            select p_group_id, i.limit_key, i.lane, i.xid, coalesce(p.seq + 1, i.seq), i.seq_to, i.jobs - coalesce(p.kept, 0)
            from unnest(v_items) with ordinality i
            left join piece p on p.class = 2 and p.place = i.ordinality
            where i.jobs > coalesce(p.kept, 0) and i.ordinality <= v_plan.used
            order by i.ordinality
            returning limit_key, parked_no, jobs
        ), parked as materialized (
            select p.limit_key, max(p.parked_no) as last, sum(p.jobs) as jobs from parking p group by p.limit_key
        ), progress as materialized (
            select p.key, sum(p.kept) as jobs, max(p.place) filter (where p.kept = p.jobs) as whole,
                   max(p.seq) filter (where p.kept between 1 and p.jobs - 1) as seq,
                   max(p.kept) filter (where p.kept between 1 and p.jobs - 1) as rest,
                   coalesce(bool_or(p.is_first) filter (where p.kept between 1 and p.jobs - 1), false) as is_first
            from piece p where p.class = 1 group by p.key
        ), next as materialized (
            -- A key that waits and has no turn stays as it is; its newer jobs were parked behind.
            select s.limit_key, s.no, s.turn, s.waiting, s.is_full, s.leases, s.claims, s.offsets, s.parked_up_to,
                   s.waiting > 0 and not w.has_turn or v_suspect as is_behind, coalesce(r.jobs, 0)::integer as run, r.first, r.low, r.high,
                   d.last, d.jobs as newly, g.jobs as went, coalesce(o.jobs, 0)::integer as granted, s.waiting - coalesce(g.jobs, 0) + coalesce(d.jobs, 0) as left,
                   coalesce(g.whole, s.taken_up_to) as up_to,
                   case when g.seq is not null then g.seq when g.whole is not null then 0 else s.taken_seq end as seq,
                   case when g.seq is not null then g.rest + case when g.is_first then s.taken_jobs else 0 end
                        when g.whole is not null then 0 else s.taken_jobs end as jobs,
                   case when r.jobs > 0 then forebay._tat_after(s.tat, s.rate, v.at, r.jobs::integer) else s.tat end as tat,
                   s.tokens - coalesce(r.jobs, 0) - coalesce(o.jobs, 0) as tokens,
                   coalesce(cardinality(s.leases) + coalesce(r.jobs, 0) + coalesce(o.jobs, 0) >= s.concurrency, false) as fills,
                   s.rate, s.burst, s.concurrency, s.limits_no, s.has_new_limits
            from unnest(v_states) with ordinality s
            join unnest(v_plan.has_turn) with ordinality w (has_turn, nr) on w.nr = s.ordinality
            left join unnest(v_taken.run_keys, v_taken.run_jobs, v_taken.run_firsts, v_taken.run_lows, v_taken.run_highs) r (key, jobs, first, low, high)
                   on r.key = s.limit_key
            left join parked d on d.limit_key = s.limit_key
            left join progress g on g.key = s.ordinality
            left join (select u as key, count(*) as jobs from unnest(v_taken.granted_limits) u group by u) o on o.key = s.limit_key
        ), written as (
            insert into forebay.limit_run (
                group_id, limit_key, no, lease_id, claim_no, place, jobs, high_seq, low_seq, turn, waiting, parked_up_to, taken_up_to, taken_seq,
                taken_jobs, is_full, tat, decided_at, leases, claims, offsets, limits_no)
            select p_group_id, n.limit_key, n.no + 1,
                   case when n.run > 0 then p_lease_id end, case when n.run > 0 then p_claim_no end, n.first, nullif(n.run, 0)::smallint,
                   coalesce(n.high, 0), n.low, nullif(n.turn + case when n.is_behind then 0 else 1 end, 0), nullif(n.left, 0),
                   nullif(coalesce(n.last, n.parked_up_to), 0), nullif(n.up_to, 0), nullif(n.seq, 0), nullif(n.jobs, 0),
                   case when n.is_behind then n.is_full else n.left > 0 and n.fills end, n.tat, case when n.tat is not null then v.at end,
                   nullif(n.leases, '{}'), nullif(n.claims, '{}'), nullif(n.offsets, '{}'), n.limits_no
            from next n
            where n.newly > 0 or n.went > 0 or n.waiting > 0 and not n.is_behind
               or n.run > 0 and (n.rate is not null or n.has_new_limits or n.concurrency is not null and not v.is_bare)
            returning limit_key, turn
        )
        select array_agg(w.limit_key order by w.limit_key) as keys, array_agg(w.turn order by w.limit_key) as turns,
               array_agg(n.fills order by w.limit_key) as fills, array_agg(n.tokens order by w.limit_key) as tokens,
               -- A key with an ordering key that got the turn takes its job soon.
               array_agg(case when n.granted > 0 then forebay._tat_after(n.tat, n.rate, v.at, n.granted) else n.tat end
                         order by w.limit_key) as tats,
               array_agg(n.rate order by w.limit_key) as rates, array_agg(n.burst order by w.limit_key) as bursts
        into v_after
        from written w join next n on n.limit_key = w.limit_key
        where n.left > 0 and not n.is_behind;
        perform forebay._grant_turns(v_here.queue, v_here.priority, p_group_id, v_taken.granted_keys, v_taken.granted_limits, v_taken.granted_seqs);
        perform forebay._give_turns(v, v_here.queue, v_here.priority, p_group_id, v_after.keys, v_after.turns, v_after.fills, v_after.tokens,
                                    v_after.tats, v_after.rates, v_after.bursts, v_paused, v_ends);
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
