-- Keys of a batch whose next job is in a new row, or that a dead letter holds, by the settlements of the batch.
create function forebay._keys_in_transit(p_lease_id bigint, p_claim_no bigint, p_keys text[]) returns text[]
language sql stable
as $$
    select array(select p_keys[u.place] from forebay.settlement s, unnest(s.offsets, s.outcomes) u (place, code)
                 where s.lease_id = p_lease_id and s.claim_no = p_claim_no and u.code in ('r', 'l', 's', 'u', 'h', 'y'))
$$;


-- Keys of which an earlier batch of a lease has a job that has not ended for good: it is open, continues in a new row, or was
-- requeued. Only key runs that the newest one of the key continues count.
create function forebay._keys_before(p_group_id bigint, p_lease_id bigint, p_claim_no bigint, p_keys text[]) returns text[]
language sql stable
-- planner: arrays
as $$
    with entry as materialized (
        select k.key, e.claim_no, o.place
        from (select distinct u.key from unnest(p_keys) u (key)) k
        cross join lateral (select coalesce(i.since, i.no) as since from forebay.key_run i
                            where i.group_id = p_group_id and i.ordering_key = k.key order by i.no desc limit 1) t
        cross join lateral (select i.claim_no, coalesce(i.offsets, array[i.place]) as offsets from forebay.key_run i
                            where i.group_id = p_group_id and i.ordering_key = k.key and i.no >= t.since
                              and i.lease_id = p_lease_id and i.claim_no < p_claim_no offset 0) e
        cross join lateral unnest(e.offsets) o (place)
    ), flush as materialized (
        select b.claim_no, s.offsets, s.outcomes
        from (select distinct e.claim_no from entry e) b
        cross join lateral (select i.offsets, i.outcomes from forebay.settlement i
                            where i.lease_id = p_lease_id and i.claim_no = b.claim_no offset 0) s
    ), final as materialized (
        select f.claim_no, u.place from flush f, unnest(f.offsets, f.outcomes) u (place, code)
        where coalesce(u.code, 'd') in ('d', 'c', 'x')
    )
    select array(
        select distinct e.key from entry e
        where not exists (select from flush f where f.claim_no = e.claim_no and f.offsets is null)
          and not exists (select from final f where f.claim_no = e.claim_no and f.place = e.place))
$$;
