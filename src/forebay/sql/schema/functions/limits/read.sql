-- What a group's limiter sees now: its newest row, minus ended jobs.
--
-- A batch is in flight until it is settled or its lease is closed; so nothing needs to be released after a crash. For one second
-- after limits on starts were set, everything is counted from the leases: claims in progress then did not pass the limiter.
create function forebay._read_limiter(p_group_id bigint, p_queue text) returns forebay._limiter_view
language plpgsql volatile
as $$
declare
    v forebay._limiter_view;
begin
    -- One statement: in each transaction an expression costs more to prepare than to evaluate.
    select coalesce(c.no, 0), n.at, c.seed_until, c.tat,
           coalesce(o.leases, '{}'), coalesce(o.claims, '{}'), coalesce(o.sizes, '{}'), coalesce(o.opens, '{}'),
           q.starts_set_at is distinct from c.limits_at or c.decided_at > n.at, coalesce(c.decided_at > n.at, false),
           q.starts_set_at is distinct from c.limits_at, k.leases, k.claims,
           -- Each claim reads the keys of these batches: a bounded number, so that beside many workers it does not.
           q.key_concurrency is not null and q.key_rate is null and k.batches < 16 and coalesce(k.jobs, 0) < 2000, 0, q
    into v
    from (select forebay._now() as at offset 0) n
    left join forebay.queue_limits q on q.queue = p_queue
    left join lateral (select g.* from forebay.limiter g where g.group_id = p_group_id order by g.no desc limit 1) c on true
    left join lateral (
        select array_agg(i.lease_id order by i.nr) as leases, array_agg(i.claim_no order by i.nr) as claims,
               array_agg(i.size order by i.nr) as sizes, array_agg(i.size - s.settled order by i.nr) as opens
        from unnest(c.leases, c.claims, c.sizes) with ordinality i (lease_id, claim_no, size, nr)
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
            from forebay.settlement j where j.lease_id = i.lease_id and j.claim_no = i.claim_no) s
        where not s.whole and s.settled < i.size
          and exists (select from forebay.lease l where l.lease_id = i.lease_id and l.closed_at is null)
          and exists (select from forebay.batch b where b.lease_id = i.lease_id and b.claim_no = i.claim_no)) o on true
    left join lateral (
        select array_agg(i.lease_id order by i.nr) as leases, array_agg(i.claim_no order by i.nr) as claims, count(*) as batches, sum(i.size) as jobs
        from (select u.*, (select cardinality(b.seqs) from forebay.batch b where b.lease_id = u.lease_id and b.claim_no = u.claim_no) as size
              from unnest(c.bare_leases, c.bare_claims) with ordinality u (lease_id, claim_no, nr)) i
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
            from forebay.settlement j where j.lease_id = i.lease_id and j.claim_no = i.claim_no) s
        where not s.whole and s.settled < i.size) k on true;

    if v.is_changed or v.seed_until >= v.at then
        v := forebay._read_limiter_fully(v, p_group_id);
    end if;
    v.free_slots := least(coalesce((v.limits).concurrency - (select sum(o) from unnest(v.opens) o), (v.limits).concurrency, 9223372036854775807),
                    forebay._permits(v.tat, (v.limits).rate, (v.limits).burst, v.at));
    return v;
end
$$;


-- Rare work of a limiter. After limits on starts were set it counts jobs in flight from the leases, and the bucket owes no more than
-- it can hold; a clock that was set back resets the bucket.
create function forebay._read_limiter_fully(v forebay._limiter_view, p_group_id bigint) returns forebay._limiter_view
language plpgsql volatile
as $$
begin
    if v.has_new_limits then
        v.seed_until := v.at + interval '1 second';
    end if;
    if v.seed_until >= v.at and (v.limits).concurrency is not null then
        select coalesce(array_agg(f.lease_id), '{}'), coalesce(array_agg(f.claim_no), '{}'),
               coalesce(array_agg(f.size), '{}'), coalesce(array_agg(f.open), '{}')
        into v.leases, v.claims, v.sizes, v.opens
        from forebay._in_flight(p_group_id) f;
    end if;
    if v.is_back then
        v.tat := v.tat - (select g.decided_at - v.at from forebay.limiter g where g.group_id = p_group_id and g.no = v.no);
    end if;
    if v.has_new_limits then
        v.tat := forebay._tat_within(v.tat, (v.limits).rate, (v.limits).burst, (v.limits).starts_set_at);
    end if;
    return v;
end
$$;


-- Batches in flight of a group, counted from the open leases: how many jobs each took and has unsettled.
create function forebay._in_flight(p_group_id bigint)
returns table (lease_id bigint, claim_no bigint, size integer, open integer, limit_keys text[])
language sql volatile
as $$
    select b.lease_id, b.claim_no, cardinality(b.seqs), cardinality(b.seqs) - s.settled, b.limit_keys
    from forebay.lease e
    cross join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    cross join lateral (
        select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
        from forebay.settlement j where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s
    where e.closed_at is null and b.group_id = p_group_id and not s.whole and s.settled < cardinality(b.seqs)
$$;


-- Append the limiter's state after a claim that took p_count jobs.
create function forebay._record_limiter(
    v forebay._limiter_view, p_group_id bigint, p_lease_id bigint, p_claim_no bigint, p_count integer)
returns void
language plpgsql volatile
as $$
begin
    if p_count > 0 then
        v.tat := forebay._tat_after(v.tat, (v.limits).rate, v.at, p_count);
        v.leases := v.leases || p_lease_id;
        v.claims := v.claims || p_claim_no;
        v.sizes := v.sizes || p_count;
        if v.is_bare then
            v.bare_leases := v.bare_leases || p_lease_id;
            v.bare_claims := v.bare_claims || p_claim_no;
        end if;
    end if;
    if (v.limits).concurrency is null then
        v.leases := '{}';
        v.claims := '{}';
        v.sizes := '{}';
    end if;
    insert into forebay.limiter (group_id, no, decided_at, limits_at, seed_until, tat, leases, claims, sizes, bare_leases, bare_claims)
    values (p_group_id, v.no + 1, v.at, (v.limits).starts_set_at, v.seed_until, v.tat, v.leases, v.claims, v.sizes, v.bare_leases, v.bare_claims);
end
$$;


-- After limits for each key were set: record which jobs of each key are in flight, and give every key a turn that has parked jobs.
create function forebay._seed_limit_keys(v forebay._limiter_view, p_group_id bigint) returns void
language plpgsql volatile
-- planner: arrays
as $$
begin
    -- Once: each turn of a full key would bring the next claim, and that one all turns again.
    if v.has_new_limits then
        perform forebay._announce_waiting(p_group_id);
    end if;
    if (v.limits).key_concurrency is null and pg_sequence_last_value('forebay.key_limits_seq') is null then
        return;
    end if;
    insert into forebay.limit_run (
        group_id, limit_key, no, high_seq, turn, waiting, parked_up_to, taken_up_to, taken_seq, taken_jobs, is_full, tat, decided_at,
        leases, claims, offsets, limits_no)
    select p_group_id, k.key, coalesce(t.no, 0) + 1, 0, t.turn, t.waiting, t.parked_up_to, t.taken_up_to, t.taken_seq, t.taken_jobs,
           coalesce(t.is_full, false), t.tat, t.decided_at, k.leases, k.claims, k.offsets, t.limits_no
    from (select u.key, array_agg(f.lease_id) as leases, array_agg(f.claim_no) as claims, array_agg(u.place::smallint) as offsets
          from forebay._in_flight(p_group_id) f
          cross join lateral unnest(f.limit_keys) with ordinality u (key, place)
          where u.key is not null
            and ((v.limits).key_concurrency is not null
                 or exists (select from forebay.key_limits o where o.queue = (v.limits).queue and o.key = u.key and num_nonnulls(o.concurrency, o.probe_seconds) > 0))
          group by u.key) k
    left join lateral (select * from forebay.limit_run i
                       where i.group_id = p_group_id and i.limit_key = k.key order by i.no desc limit 1) t on true;
end
$$;
