-- The choice of a keyed claim: what becomes of the rows that it read. All key runs of a group are decided under one lock.
--
-- A paused key is taken for every lease; see forebay._hold_keys().
--
-- A job with a limit key too needs a permit of that key, when its turn in the ordering key has come. If it gets none and no job of the
-- ordering key is with a lease, it becomes the first requeued one and waits for a turn of the limit key, which a recheck row passes on.
-- Jobs that wait in a worker behind others of their ordering key would use slots of the limit key: they get some only while half of
-- them stay free.
--
-- Parameters: p_limit, how many jobs may be taken; v: see forebay._take_keyed(), whose planner settings hold here too.
-- p_ahead: a lease that has a key gets more of its jobs while none of them must run again, and while at most this number of those it has are
-- open. It grows with the request: jobs behind a slow one should stay in the log, where they can be cancelled.
create function forebay._decide_keyed(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_rows forebay.log[], p_limit integer, p_ahead integer,
    p_tombstones boolean, p_queue text, p_priority integer, p_audience bigint, p_at timestamptz, v forebay._limiter_view)
returns forebay._key_choice
language plpgsql volatile
as $$
declare
    v_choice   forebay._key_choice;
    v_holds    boolean;                  -- a dead letter held its key once
    v_parks    boolean;                  -- a job was parked once
    v_found    forebay._key_candidates;
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
    -- From here on no other session decides about the group's keys, and later statements see earlier decisions.
    perform forebay._lock_keys(p_group_id, false);
    v_holds := pg_sequence_last_value('forebay.hold_seq') is not null;
    v_parks := pg_sequence_last_value('forebay.parked_seq') is not null;

    if pg_sequence_last_value('forebay.key_pause_seq') is not null then
        -- A later statement than the one that read the lane: it sees the call that appended a recheck row that was read.
        select p.keys, p.ends into v_paused, v_ends
        from forebay._paused_keys(p_queue, 'ordering', array(select u.ordering_key from unnest(p_rows) u), p_at) p;
        if v_paused <> '{}' then
            v_held := forebay._hold_keys(p_group_id, p_queue, p_priority, p_audience, v_paused, v_ends, p_rows, p_at);
        end if;
    end if;

    if v.at is not null then
        v_names := array(select distinct u.limit_key from unnest(p_rows) u where u.limit_key is not null);
    end if;
    if v_names <> '{}' and p_audience = 0 then
        select m.states, m.paused, m.ends into v_states, v_shut, v_shut_ends from forebay._limits_met(p_group_id, p_queue, v_names, v) m;
        select case when v.seed_until >= v.at then 'none'
                    when bool_and(s.waiting = 0 and n.jobs <= s.permits - forebay._reserve(s.concurrency)) then 'all'
                    when bool_and(s.waiting = 0 and n.jobs <= s.permits) then 'first'
                    else 'none' end
        into v_fits
        from unnest(v_states) s
        join (select u.limit_key, count(*) as jobs from unnest(p_rows) u group by u.limit_key) n on n.limit_key = s.limit_key;
    end if;

    -- Nearly always each key is free or belongs to this lease, no job of it waits or runs again, and all rows read are taken.
    if p_audience = 0 and v_paused = '{}' and v_fits is distinct from 'none' then
        with met as materialized (
            select u.ordering_key as key, u.ordinality::smallint as place, u.seq, u.xid, u.limit_key, coalesce(u.job_id, u.seq) as job_id,
                   coalesce(u.expires_at, u.enqueued_at + interval '30 days') as expires
            from unnest(p_rows) with ordinality u
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
               and coalesce((select sum(b.open) from batch_state b where b.lease_id = p_lease_id), 0) <= p_ahead
               and (select m.expires from met_all m) > p_at
               and (v_fits is distinct from 'first'
                    or (select count(*) from key k) = cardinality(p_rows) and not exists (select from batch_state b where b.open > 0))
               and not (p_tombstones and exists (select from forebay.tombstone x where x.job_id = any (array(select m.job_id from met m)))) as is_plain
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
        select d.is_plain, null, a.seqs, a.xids, a.keys,
               case when exists (select from several)
                    then (select array_agg(k.tail order by m.place) from met m join key k on k.key = m.key) end,
               (select array_agg(m.limit_key) from met m having bool_or(m.limit_key is not null)),
               a.high, null, cardinality(p_rows), 0, null, null, null, null, null, null, null, null
        into v_choice
        from verdict d, met_all a;
    end if;

    if v_choice.is_plain is not true then
        v_found := forebay._keyed_candidates(p_lease_id, p_group_id, p_rows, v_held, v_paused, p_limit, p_ahead, p_audience);
        v_read := p_rows || forebay._fetch(v_found.fetch_lanes, v_found.fetch_seqs);
        if v.at is not null then
            v_names := array(select distinct u.limit_key from unnest(v_read) u where u.limit_key is not null);
        end if;
        if v_names <> '{}' then
            v_turns := array(select u.limit_key from unnest(p_rows) u where u.kind = '' and u.limit_key is not null);
            v_turn_of := array(select (u.args ->> 'seq')::bigint from unnest(p_rows) u where u.kind = '' and u.limit_key is not null);
            select m.states, m.paused, m.ends into v_states, v_shut, v_shut_ends from forebay._limits_met(p_group_id, p_queue, v_names, v) m;
            if v.seed_until >= v.at then
                v_states := forebay._less_in_flight(p_group_id, v_states);
            end if;
        end if;

        v_choice := forebay._choose_keyed(p_lease_id, p_claim_no, p_group_id, p_rows, v_read, v_found, v_states, v_turn_of, v_paused, p_limit,
                                         p_tombstones, p_queue, p_priority, p_audience, p_at);
    end if;
    if v_names <> '{}' then
        perform forebay._record_keyed_limits(
            v, p_queue, p_priority, p_group_id, p_lease_id, p_claim_no, v_states, v_shut, v_shut_ends,
            v_choice.limit_keys, v_choice.seqs, v_turns,
            v_choice.waiting_limits, v_choice.waiting_keys, v_choice.waiting_nos, v_choice.waiting_lanes, v_choice.waiting_xids, v_choice.waiting_seqs);
    end if;
    return v_choice;
end
$$;
