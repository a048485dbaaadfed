-- What a keyed claim may choose from: for each key of the rows read its requeued jobs, its parked ones, and the new ones, in this order.
--
-- Parameters: p_held, rows of paused keys, which are requeued; p_paused, these keys; p_limit, how many jobs may be taken; p_ahead, see
-- forebay._decide_keyed().
create function forebay._keyed_candidates(
    p_lease_id bigint, p_group_id bigint, p_rows forebay.log[], p_held bigint[], p_paused text[], p_limit integer, p_ahead integer,
    p_audience bigint)
returns forebay._key_candidates
language plpgsql volatile
as $$
declare
    v_found forebay._key_candidates;
begin
    with met as materialized (
        select u.ordering_key as key, u.ordinality as nr, u.lane, u.seq, u.kind = '' as is_recheck, coalesce(u.job_id, u.seq) as job_id
        from unnest(p_rows) with ordinality u
        where u.seq <> all (p_held)
    ), stands as materialized (
        select s.*, s.open > 0 as is_busy, s.ordering_key = any (p_paused) as is_paused,
               s.head is not null
               and not exists (select from met m where m.key = s.ordering_key and m.job_id = s.head and not m.is_recheck)
               or s.waits_for is not null and not exists (select from met m where m.key = s.ordering_key and m.is_recheck) as waits,
               s.open between 1 and p_ahead and s.holder = p_lease_id and not s.is_suspect and p_audience >= 0
               and s.head is null and s.waiting_seqs = '{}' as continues
        from forebay._key_states(p_group_id, array(select distinct m.key from met m)) s
    ), state as materialized (
        select s.ordering_key as key, s.no, s.taken_up_to, s.head, s.is_busy, s.is_paused, s.waits_for, s.waits_at, s.waiting_lanes, s.waiting_seqs, t.is_taken,
               case when s.continues then s.first_open else s.no + 1 end as since,
               greatest(1, p_limit / greatest(1, count(*) filter (where not t.is_taken) over ()))::integer as quota
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
                                or p_audience < 0 and (b.jobs > 0 or s.waiting_seqs <> '{}') then 4 else 3 end,
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
    return v_found;
end
$$;


-- The choice of a keyed claim among its candidates, where not all rows are simply taken: the first job of each key before the second of any. It
-- writes the key runs, parks what is not taken, and writes the dead letters of expired jobs.
--
-- Parameters: p_rows, the rows that were read from the lane; p_read, these and those of the candidates; p_states, of the limit keys of these;
-- p_turn_of, numbers of jobs whose limit key has given them the turn; p_paused, paused keys. The planner settings of forebay._take_keyed() hold here too.
create function forebay._choose_keyed(
    p_lease_id bigint, p_claim_no bigint, p_group_id bigint, p_rows forebay.log[], p_read forebay.log[], p_found forebay._key_candidates,
    p_states forebay._limit_state[], p_turn_of bigint[], p_paused text[], p_limit integer, p_tombstones boolean,
    p_queue text, p_priority integer, p_audience bigint, p_at timestamptz)
returns forebay._key_choice
language plpgsql volatile
as $$
declare
    v_public bigint[] := array(select l.lane from forebay.lane l where l.queue = p_queue and l.audience = 0 and l.sort = 'keyed');
    v_taken  record;
begin
    with row_of as materialized (
        select u.seq, u.lane, u.xid, coalesce(u.job_id, u.seq) as job_id, u as job,
               case when n.reason in ('c', 'r') then 'c'
                    when n.reason = 'e' then 'E'
                    when coalesce(u.expires_at, u.enqueued_at + interval '30 days') <= p_at then 'e' end as verdict
        from unnest(p_read) u
        left join lateral (
            select i.reason from forebay.tombstone i
            where p_tombstones and i.job_id = coalesce(u.job_id, u.seq) and (i.group_id is null or i.group_id = p_group_id)
              and i.reason <> 'k'
            order by i.reason = 'e' desc limit 1) n on true
        where u.kind <> ''
    ), listed as materialized (
        select x.key, x.class, x.nr, x.parked_no, r.lane, r.seq, r.xid, r.job_id, r.job, r.verdict, (r.job).limit_key, s.is_busy, a.may,
               a.may and r.verdict is null as would,
               x.class = 1 and r.seq = any (p_turn_of) as is_granted,
               x.class in (2, 3) and x.lane = any (v_public) as is_fresh,
               count(*) filter (where a.may and r.verdict is null) over (partition by x.key order by x.nr) as rank
        from unnest(p_found.keys, p_found.classes, p_found.lanes, p_found.seqs, p_found.parked) with ordinality x (key, class, lane, seq, parked_no, nr)
        join row_of r on r.seq = x.seq and r.lane = x.lane
        join unnest(p_found.state_keys, p_found.state_busy) s (key, is_busy) on s.key = x.key
        cross join lateral (select x.class < 4 and (p_audience >= 0 or x.class in (0, 3)) as may) a
    ), limited as materialized (
        -- Jobs that get no permit of their limit key, each counted in the order in which they would be taken.
        select i.key, min(i.nr) as stop
        from (select l.key, l.nr, l.limit_key, l.is_granted, l.rank = 1 and not l.is_busy as is_first,
                     row_number() over (partition by l.limit_key order by l.is_granted desc, l.rank, l.class > 0, l.nr) as place
              from listed l where l.would and l.limit_key is not null) i
        join unnest(p_states) s on s.limit_key = i.limit_key
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
              order by w.rank, w.class > 0, w.nr limit p_limit) i
        where i.place = 1 or i.class = 0 or i.bytes < forebay._claim_bytes()
    ), reach as materialized (
        -- A key run reaches to the last job taken, or over all skipped jobs when none is to run.
        select s.key, s.no, s.since, s.taken_up_to, h.places, h.jobs, h.low, h.high, i.runs, i.stop, w.at as waits, s.waiting, s.waits_at,
               coalesce(h.upto, w.at, case when not i.runs then i.upto end) as upto
        from unnest(p_found.state_keys, p_found.state_nos, p_found.state_since, p_found.state_positions, p_found.state_busy,
                    p_found.state_waiting, p_found.state_waits_at) s (key, no, since, taken_up_to, is_busy, waiting, waits_at)
        left join (select x.key, max(x.nr) as upto, array_agg(x.place order by x.nr) as places,
                          array_agg(x.job_id order by x.nr) as jobs, min(x.seq) as low, max(x.seq) as high
                   from chosen x group by x.key) h on h.key = s.key
        left join (select x.key, max(x.nr) filter (where x.may_run) as upto, bool_or(x.runs) as runs, min(x.stop) as stop
                   from candidate x group by x.key) i on i.key = s.key
        -- With no job of the key in a worker, the job that got no permit waits for a turn of its limit key.
        cross join lateral (select case when not s.is_busy and not i.runs and p_audience >= 0 then i.stop end as at) w
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
        join unnest(p_states) s on s.limit_key = i.limit_key
        cross join lateral (select i.seq is distinct from t.waiting or t.waits_at <= s.taken_up_to as is_new) w
    ), key_run as (
        insert into forebay.key_run (
            group_id, ordering_key, no, since, lease_id, claim_no, offsets, jobs, taken_up_to, rest_lanes, rest_seqs, waits_for, waits_at, low_seq, high_seq,
            is_suspect)
        select p_group_id, t.key, t.no + 1, t.since, case when t.places is not null then p_lease_id end,
               case when t.places is not null then p_claim_no end, t.places, t.jobs, greatest(t.taken_up_to, r.taken_up_to), r.lanes, r.seqs, w.limit_key, w.parked_no,
               coalesce(least(t.low, r.low), 0), coalesce(greatest(t.high, r.high), 0), p_audience < 0
        from reach t join rest r on r.key = t.key left join waiting w on w.key = t.key
    ), parking as (
        insert into forebay.parked (group_id, ordering_key, lane, seq)
        select p_group_id, i.key, i.lane, i.seq
        from candidate i join reach t on t.key = i.key
        where i.class = 4 or i.class = 3 and i.nr > coalesce(t.upto, 0) and not (p_audience < 0 and i.nr = t.stop)
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
           (select max(u.seq) from (select i.seq from candidate i union all select r.seq from unnest(p_rows) r) u) as high,
           (select array_agg(i.job order by i.place) from chosen i) as jobs,
           (select count(*) from chosen i where i.is_fresh) as fresh, (select count(*) from skipped i where i.is_fresh) as fresh_skipped,
           (select array_agg(i.seq order by i.nr) from skipped i) as skipped,
           (select array_agg(lower(i.verdict)::"char" order by i.nr) from skipped i) as skipped_as,
           (select array_agg(forebay._write_dead_letter(p_group_id, p_queue, p_priority, i.job, 'expired', coalesce((i.job).attempt, 0)) order by i.nr)
            from skipped i where i.verdict = 'e') as dead,
           (select count(forebay._append_again(p_queue, p_group_id, p_priority, i.job, p_at + case when i.key = any (p_paused) and p_audience < 0 then interval '10 seconds'
                                                              when i.nr = i.stop then interval '1 second'
                                                              else interval '0.2 seconds' end))
            from candidate i where i.class = 5 or p_audience < 0 and i.nr = i.stop) as appended_again,
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
        perform forebay._announce_keys(p_queue, p_priority, p_group_id, v_taken.again);
    end if;
    if v_taken.dead is not null then
        perform forebay._report_deaths(v_taken.dead);
    end if;
    if pg_sequence_last_value('forebay.hold_seq') is not null then
        -- The redriven job has its place: the dead letter holds the key no longer.
        update forebay.dead_letter d set holds_key = false
        from unnest(p_rows) r
        where d.group_id = p_group_id and d.ordering_key = r.ordering_key and d.holds_key and d.redriven_as = coalesce(r.job_id, r.seq)
          and (r.seq = any (v_taken.seqs) or r.seq = any (v_taken.skipped) or r.seq = any (v_taken.waiting_seqs));
    end if;
    return row(false, v_taken.lanes, v_taken.seqs, v_taken.xids, v_taken.keys, v_taken.tails, v_taken.limit_keys, v_taken.high, v_taken.jobs,
               v_taken.fresh, v_taken.fresh_skipped, v_taken.skipped, v_taken.skipped_as, v_taken.waiting_limits, v_taken.waiting_keys,
               v_taken.waiting_nos, v_taken.waiting_lanes, v_taken.waiting_xids, v_taken.waiting_seqs)::forebay._key_choice;
end
$$;
