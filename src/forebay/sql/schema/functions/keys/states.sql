-- The states of keys for a group: one row for each.
--
-- is_suspect: the lease that has the key gets no more of it: it has a suspect, or releases the jobs behind one that held the key.
-- open: unsettled jobs of its newest key runs; the lease holder has them, the first is of key run first_open. head: the
-- id of a job that must come first and is in a new row, for example a retry; or of a dead letter's job that holds the key. waiting_*: requeued jobs, in order; the first of
-- them is next, before all parked ones. waits_for: the limit key for a turn of which that first one waits, and waits_at its row there.
create function forebay._key_states(p_group_id bigint, p_keys text[])
returns table (
    ordering_key text, no bigint, since bigint, taken_up_to bigint, is_suspect boolean, open bigint, holder bigint, first_open bigint, head bigint,
    waiting_lanes bigint[], waiting_seqs bigint[], waits_for text, waits_at bigint)
language sql stable
-- planner: arrays
as $$
    with last as materialized (
        select k.key, t.no, coalesce(t.since, t.no) as since, t.taken_up_to, t.is_suspect, t.rest_lanes, t.rest_seqs, t.waits_for, t.waits_at
        from unnest(p_keys) k (key)
        left join lateral (select * from forebay.key_run i
                           where i.group_id = p_group_id and i.ordering_key = k.key
                           order by i.no desc limit 1) t on true
    ), key_run as materialized (
        select l.key, t.no, t.lease_id, t.claim_no, coalesce(t.offsets, array[t.place]) as offsets, coalesce(t.jobs, array[t.low_seq]) as jobs
        from last l
        cross join lateral (select * from forebay.key_run i
                            where i.group_id = p_group_id and i.ordering_key = l.key and i.no between l.since and l.no
                              and i.lease_id is not null offset 0) t
    ), flush as materialized (
        select b.lease_id, b.claim_no, s.offsets, s.outcomes
        from (select distinct t.lease_id, t.claim_no from key_run t) b
        cross join lateral (select i.offsets, i.outcomes from forebay.settlement i
                            where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) s
    ), ended as materialized (
        select f.lease_id, f.claim_no, u.place, coalesce(u.code, 'd') as code
        from flush f, unnest(f.offsets, f.outcomes) u (place, code)
    ), open as materialized (
        -- Batches that are not settled as a whole. A batch removed meanwhile ended long ago.
        select b.lease_id, b.claim_no
        from (select distinct t.lease_id, t.claim_no from key_run t) b
        cross join lateral (select from forebay.batch i
                            where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) i
        where not exists (select from flush f where f.lease_id = b.lease_id and f.claim_no = b.claim_no and f.offsets is null)
    ), partial as materialized (
        select t.key, t.no, t.lease_id, t.claim_no, u.place, u.job, e.code
        from open o
        join key_run t on t.lease_id = o.lease_id and t.claim_no = o.claim_no
        cross join lateral unnest(t.offsets, t.jobs) u (place, job)
        left join ended e on e.lease_id = t.lease_id and e.claim_no = t.claim_no and e.place = u.place
    ), kept as materialized (
        select p.key, array_agg(u.lane order by p.no, p.place) as lanes, array_agg(u.seq order by p.no, p.place) as seqs
        from partial p
        join (select b.lease_id, b.claim_no, u.place, u.seq, coalesce(u.lane, i.lane) as lane
              from (select distinct k.lease_id, k.claim_no from partial k where k.code = 'k') b
              cross join lateral (select i.lane, i.seqs, i.lanes from forebay.batch i
                                  where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) i
              cross join lateral unnest(i.seqs, i.lanes) with ordinality u (seq, lane, place)) u
          on u.lease_id = p.lease_id and u.claim_no = p.claim_no and u.place = p.place
        where p.code = 'k'
        group by p.key
    ), state as materialized (
        select p.key, count(*) filter (where p.code is null) as open, min(p.lease_id) as holder,
               min(p.no) filter (where p.code is null) as first_open,
               min(p.job) filter (where p.code in ('r', 'l', 's', 'u', 'h')) as head, bool_or(p.code = 'y') as has_held
        from partial p
        group by p.key
    ), held as materialized (
        -- A dead letter's own job never comes. The one that it is redriven as does.
        select l.key, d.head
        from last l
        cross join lateral (
            -- Not through the index that has the order: its plan would read all dead letters.
            select coalesce(h.redriven_as, h.job_id) as head
            from (select i.dead_id, i.redriven_as, i.job_id from forebay.dead_letter i
                  where i.group_id = p_group_id and i.ordering_key = l.key and i.holds_key offset 0) h
            order by h.dead_id limit 1) d
        where pg_sequence_last_value('forebay.hold_seq') is not null
    )
    select l.key, coalesce(l.no, 0), coalesce(l.since, 0), coalesce(l.taken_up_to, 0), coalesce(l.is_suspect, false) or coalesce(s.has_held, false), coalesce(s.open, 0), s.holder, s.first_open, coalesce(h.head, s.head),
           coalesce(k.lanes || l.rest_lanes, k.lanes, l.rest_lanes, '{}'), coalesce(k.seqs || l.rest_seqs, k.seqs, l.rest_seqs, '{}'), l.waits_for, l.waits_at
    from last l
    left join state s on s.key = l.key
    left join kept k on k.key = l.key
    left join held h on h.key = l.key
$$;
