-- Does a keyed job that a group's cursor has passed still wait for its key?
create function forebay._is_parked(p_group_id bigint, p_ordering_key text, p_seq bigint) returns boolean
language sql stable
as $$
    select exists (
        select from forebay._key_states(p_group_id, array[p_ordering_key]) s
        where p_seq = any (s.waiting_seqs)
           or exists (select from forebay.parked p
                      where p.seq = p_seq and p.group_id = p_group_id and p.ordering_key = p_ordering_key and p.parked_no > s.taken_up_to))
$$;


-- The last batch with a row of a keyed job, or null.
create function forebay._keyed_batch_of(p_group_id bigint, p_ordering_key text, p_seq bigint) returns forebay.batch
language plpgsql stable
as $$
declare
    v_batch forebay.batch;
begin
    for v_batch in
        select b.* from forebay.key_run t
        join forebay.batch b on b.lease_id = t.lease_id and b.claim_no = t.claim_no
        where t.group_id = p_group_id and t.ordering_key = p_ordering_key and t.low_seq <= p_seq and coalesce(t.high_seq, t.low_seq) >= p_seq
          and p_seq = any (b.seqs)
        order by t.no desc limit 1
    loop
        return v_batch;
    end loop;
    return null;
end
$$;


-- The ordering keys that may have jobs behind a cursor: with parked rows, and with jobs that were requeued, now or earlier. So the many
-- keys of which no job waits cost nothing.
create function forebay._waiting_ordering_keys()
returns table (group_id bigint, ordering_key text)
language sql stable
-- planner: in order
as $$
    with recursive parked_key as (
        (select p.group_id, p.ordering_key from forebay.parked p order by p.group_id, p.ordering_key limit 1)
        union all
        select n.group_id, n.ordering_key
        from parked_key k, lateral (
            select p.group_id, p.ordering_key from forebay.parked p
            where (p.group_id, p.ordering_key) > (k.group_id, k.ordering_key)
            order by p.group_id, p.ordering_key limit 1) n
    )
    select k.group_id, k.ordering_key from parked_key k
    union
    select t.group_id, t.ordering_key from forebay.key_run t where t.rest_seqs is not null
    union
    select b.group_id, b.keys[u.place]
    from forebay.settlement s
    cross join lateral (select i.group_id, i.keys from forebay.batch i
                        where i.lease_id = s.lease_id and i.claim_no = s.claim_no offset 0) b
    cross join lateral unnest(s.offsets, s.outcomes) u (place, code)
    where 'k' = any (s.outcomes) and u.code = 'k'
$$;


-- All jobs with ordering keys that wait behind a cursor: parked or requeued.
create function forebay._all_ordering_parked()
returns table (group_id bigint, ordering_key text, lane bigint, seq bigint, place bigint)
language sql stable
as $$
    with state as materialized (
        select g.group_id, s.*
        from (select k.group_id, array_agg(k.ordering_key) as keys from forebay._waiting_ordering_keys() k group by k.group_id) g,
             lateral forebay._key_states(g.group_id, g.keys) s
    )
    select s.group_id, s.ordering_key, u.lane, u.seq, u.nr - 1000000000
    from state s, unnest(s.waiting_lanes, s.waiting_seqs) with ordinality u (lane, seq, nr)
    union all
    select p.group_id, p.ordering_key, p.lane, p.seq, p.parked_no
    from forebay.parked p
    left join state s on s.group_id = p.group_id and s.ordering_key = p.ordering_key
    where p.parked_no > coalesce(s.taken_up_to, 0)
$$;
