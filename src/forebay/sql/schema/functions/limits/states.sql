-- The states of limit keys for a group, in the order of the keys. Jobs in flight that have ended are left out. A job in flight may be
-- in the key's newest row and in a batch of limiter.bare_leases.
create function forebay._limit_states(p_group_id bigint, p_keys text[], p_limits forebay.queue_limits, p_at timestamptz)
returns forebay._limit_state[]
language plpgsql stable  -- In SQL it would be planned at each call.
-- planner: arrays
as $$
begin
    return (
    with last as materialized (
        select k.key, k.nr, t.*
        from unnest(p_keys) with ordinality k (key, nr)
        left join lateral (select * from forebay.limit_run i
                           where i.group_id = p_group_id and i.limit_key = k.key
                           order by i.no desc limit 1) t on true
    ), listed as materialized (
        select l.nr, u.lease_id, u.claim_no, u.place, u.ordinality as job
        from last l cross join lateral unnest(l.leases, l.claims, l.offsets) with ordinality u (lease_id, claim_no, place, ordinality)
        union all
        select l.nr, l.lease_id, l.claim_no, o::smallint, 1000000 + o
        from last l cross join lateral generate_series(l.place, l.place + l.jobs - 1) o
        where p_limits.key_concurrency is not null
        union all
        select l.nr, b.lease_id, b.claim_no, u.place::smallint, 2000000 + u.place
        from (select i.bare_leases, i.bare_claims from forebay.limiter i where i.group_id = p_group_id order by i.no desc limit 1) g
        cross join lateral unnest(g.bare_leases, g.bare_claims) o (lease_id, claim_no)
        cross join lateral (select i.lease_id, i.claim_no, i.limit_keys from forebay.batch i
                            where i.lease_id = o.lease_id and i.claim_no = o.claim_no offset 0) b
        cross join lateral unnest(b.limit_keys) with ordinality u (key, place)
        join last l on l.key = u.key
        where p_limits.key_concurrency is not null
    ), flight as materialized (
        select u.nr, u.lease_id, u.claim_no, u.place, min(u.job) as job from listed u group by u.nr, u.lease_id, u.claim_no, u.place
    ), flush as materialized (
        select b.lease_id, b.claim_no, s.offsets
        from (select distinct f.lease_id, f.claim_no from flight f) b
        cross join lateral (select i.offsets from forebay.settlement i
                            where i.lease_id = b.lease_id and i.claim_no = b.claim_no offset 0) s
    ), ended as materialized (
        select f.lease_id, f.claim_no, u.place from flush f, unnest(f.offsets) u (place)
    ), open as materialized (
        select f.nr, count(*) as jobs, array_agg(f.lease_id order by f.job) as leases, array_agg(f.claim_no order by f.job) as claims,
               array_agg(f.place order by f.job) as offsets
        from flight f
        -- A batch that was removed ended long ago.
        where exists (select from forebay.batch b where b.lease_id = f.lease_id and b.claim_no = f.claim_no)
          and not exists (select from flush w where w.lease_id = f.lease_id and w.claim_no = f.claim_no and w.offsets is null)
          and not exists (select from ended e where e.lease_id = f.lease_id and e.claim_no = f.claim_no and e.place = f.place)
        group by f.nr
    )
    select array_agg(
        row(l.key, coalesce(l.no, 0), coalesce(l.turn, 0), coalesce(l.waiting, 0), coalesce(l.parked_up_to, 0),
            coalesce(l.taken_up_to, 0), coalesce(l.taken_seq, 0), coalesce(l.taken_jobs, 0), coalesce(l.is_full, false), b.tat,
            coalesce(o.leases, '{}'), coalesce(o.claims, '{}'), coalesce(o.offsets, '{}'),
            least(coalesce(p_limits.key_concurrency - coalesce(o.jobs, 0), 9223372036854775807), b.tokens), b.tokens)::forebay._limit_state
        order by l.nr)
    from last l
    left join open o on o.nr = l.nr
    cross join lateral (
        select t.tat, forebay._permits(t.tat, p_limits.key_rate, p_limits.key_burst, p_at) as tokens
        -- A clock that was set back moves the bucket; a rate that was set since bounds what it owes.
        from (select case when l.decided_at < p_limits.starts_set_at
                          then forebay._tat_within(l.tat, p_limits.key_rate, p_limits.key_burst, p_limits.starts_set_at)
                          when l.decided_at > p_at then l.tat - (l.decided_at - p_at)
                          else l.tat end as tat offset 0) t) b);
end
$$;


-- Give limit keys a turn: append a recheck row for each. p_turns: the turns that they follow, null: whatever turn it is then.
create function forebay._announce_limit_keys(p_lane bigint, p_keys text[], p_turns bigint[]) returns void
language sql volatile
as $$
    insert into forebay.log (lane, enqueued_at, attempt, kind, args, limit_key)
    select p_lane, forebay._now(), (u.turn & 2147483647)::integer, '', '{}', u.key
    from unnest(p_keys, p_turns) with ordinality u (key, turn, nr) order by u.nr
$$;


-- Give a turn to all limit keys of a group that have parked jobs.
create function forebay._announce_waiting(p_group_id bigint) returns void
language sql volatile
as $$
    select forebay._announce_limit_keys(forebay._record_limited_lane(k.queue, k.priority, p_group_id), k.keys, null)
    from (select l.queue, l.priority, array_agg(w.limit_key order by w.limit_key) as keys
          from forebay._waiting_limit_keys(p_group_id) w
          cross join lateral (select p.lane from forebay.limit_parked p
                              where p.group_id = p_group_id and p.limit_key = w.limit_key and p.parked_no > coalesce(w.taken_up_to, 0)
                              order by p.parked_no limit 1) p
          cross join lateral (select i.queue, i.priority from forebay.lane i where i.lane = p.lane limit 1) l
          where pg_sequence_last_value('forebay.limit_parked_seq') is not null
          group by l.queue, l.priority) k
$$;


-- Give limit keys a turn when one of their jobs has ended, as far as jobs of them wait for that.
--
-- The states are read under the lock of the claims' decisions: a claim that parked a job by then is seen, and a later one sees this
-- settlement. A handler's transaction may be held open; it does not take that lock, and announces in any case, like a revocation.
--
-- Locks: the group's limiter (shared), with p_looks.
create function forebay._release_limits(p_lane bigint, p_group_id bigint, p_keys text[], p_looks boolean) returns void
language plpgsql volatile
as $$
declare
    v_lane record;
    v_keys text[] := array(select distinct k from unnest(p_keys) k);
begin
    if p_looks and current_setting('transaction_isolation') = 'read committed'
       and statement_timestamp() - transaction_timestamp() <= interval '3 seconds' then
        perform forebay._lock_limiter(p_group_id, true);
        v_keys := array(
            select k.key
            from unnest(v_keys) k (key)
            cross join lateral (select i.waiting, i.is_full from forebay.limit_run i
                                where i.group_id = p_group_id and i.limit_key = k.key order by i.no desc limit 1) t
            where t.waiting > 0 and t.is_full);
    end if;
    if v_keys <> '{}' then
        select l.queue, l.priority into v_lane from forebay.lane l where l.lane = p_lane limit 1;
        perform forebay._announce_limit_keys(
            forebay._record_limited_lane(v_lane.queue, v_lane.priority, p_group_id), v_keys, null);
    end if;
end
$$;
