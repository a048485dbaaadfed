-- The number by which limiters know a limit key; 0: no key.
create function forebay._limit_key_id(p_limit_key text) returns bigint
language sql volatile
as $$ select coalesce(forebay._secret_hash('//' || p_limit_key), 0) $$;


-- Jobs in flight of a group, counted from the open leases: batches, their keys, and how many jobs each took and has unsettled.
create function forebay._in_flight(p_group_id bigint)
returns table (lease_id bigint, claim_no bigint, key bigint, size integer, open integer)
language sql volatile
as $$
    select b.lease_id, b.claim_no, forebay._limit_key_id(k.limit_key), cardinality(b.seqs), cardinality(b.seqs) - s.settled
    from forebay.lease e
    cross join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    cross join lateral (select l.limit_key from forebay.lane l where l.lane = b.lane limit 1) k
    cross join lateral (
        select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
        from forebay.settlement j where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s
    where e.closed_at is null and b.group_id = p_group_id and not s.whole and s.settled < cardinality(b.seqs)
$$;
