-- The states of limit keys for a group, in the order of the keys. Jobs in flight that have ended are left out. A job in flight may be
-- in the key's newest row and in a batch of limiter.bare_leases.
--
-- The first state after a change of the key's own limits counts the jobs in flight from the leases too: without a limit on concurrency none
-- were recorded. No claim is missed: all claims of the queue pass the limiter, and each records under which limits it decided.
create function forebay._limit_states(p_group_id bigint, p_keys text[], p_limits forebay.queue_limits, p_at timestamptz)
returns forebay._limit_state[]
language plpgsql stable  -- In SQL it would be planned at each call.
-- planner: arrays
as $$
declare
    -- A variable: the planner does not trust a sequence, and would read the table for each key.
    v_queue constant text := case when pg_sequence_last_value('forebay.key_limits_seq') is not null then p_limits.queue end;
begin
    return (
    with last as materialized (
        select k.key, k.nr, t.*, coalesce(o.rate, p_limits.key_rate) as rate,
               case when o.rate is null then p_limits.key_burst else o.burst end as burst,
               coalesce(o.concurrency, p_limits.key_concurrency) as concurrency, o.no as own_no, o.set_at, o.empty_until,
               t.limits_no is distinct from o.no as has_new_limits
        from unnest(p_keys) with ordinality k (key, nr)
        left join lateral (select * from forebay.limit_run i
                           where i.group_id = p_group_id and i.limit_key = k.key
                           order by i.no desc limit 1) t on true
        -- An open breaker hides the key's own limits.
        left join lateral (select case when i.probe_seconds is null then i.rate else 1 / i.probe_seconds end as rate,
                                  case when i.probe_seconds is null then i.burst else 1 end as burst,
                                  case when i.probe_seconds is null then i.concurrency else 1 end as concurrency,
                                  i.no, i.set_at, i.empty_until
                           from forebay.key_limits i
                           where v_queue is not null and i.queue = v_queue and i.key = k.key offset 0) o on true
    ), listed as materialized (
        select l.nr, u.lease_id, u.claim_no, u.place, u.ordinality as job
        from last l cross join lateral unnest(l.leases, l.claims, l.offsets) with ordinality u (lease_id, claim_no, place, ordinality)
        union all
        select l.nr, l.lease_id, l.claim_no, o::smallint, 1000000 + o
        from last l cross join lateral generate_series(l.place, l.place + l.jobs - 1) o
        where l.concurrency is not null
        union all
        select l.nr, b.lease_id, b.claim_no, u.place::smallint, 2000000 + u.place
        from (select i.bare_leases, i.bare_claims from forebay.limiter i where i.group_id = p_group_id order by i.no desc limit 1) g
        cross join lateral unnest(g.bare_leases, g.bare_claims) o (lease_id, claim_no)
        cross join lateral (select i.lease_id, i.claim_no, i.limit_keys from forebay.batch i
                            where i.lease_id = o.lease_id and i.claim_no = o.claim_no offset 0) b
        cross join lateral unnest(b.limit_keys) with ordinality u (key, place)
        join last l on l.key = u.key
        where l.concurrency is not null
        union all
        select l.nr, i.lease_id, i.claim_no, u.place::smallint, 3000000 + u.place
        from (select p_group_id as group_id from last c where c.has_new_limits and c.own_no is not null and c.concurrency is not null limit 1) g
        cross join lateral forebay._in_flight(g.group_id) i
        cross join lateral unnest(i.limit_keys) with ordinality u (key, place)
        join last l on l.key = u.key
        where l.has_new_limits and l.own_no is not null and l.concurrency is not null
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
            least(coalesce(l.concurrency - coalesce(o.jobs, 0), 9223372036854775807), b.tokens), b.tokens,
            l.rate, l.burst, l.concurrency, l.own_no, l.has_new_limits)::forebay._limit_state
        order by l.nr)
    from last l
    left join open o on o.nr = l.nr
    cross join lateral (
        select t.tat, forebay._permits(t.tat, l.rate, l.burst, p_at) as tokens
        -- A clock that was set back moves the bucket; a rate that was set since bounds what it owes.
        from (select case when l.has_new_limits and l.empty_until is not null then e.tat
                          when l.has_new_limits then forebay._tat_within(l.tat, l.rate, l.burst, coalesce(l.set_at, p_at))
                          when l.decided_at < p_limits.starts_set_at
                          then greatest(forebay._tat_within(l.tat, l.rate, l.burst, p_limits.starts_set_at),
                                        -- It still has no token before, whatever the limits of the queue are now.
                                        case when l.empty_until > p_limits.starts_set_at then e.tat end)
                          when l.decided_at > p_at then l.tat - (l.decided_at - p_at)
                          else l.tat end as tat
              from (select l.empty_until + make_interval(secs => (coalesce(l.burst, ceil(l.rate)) - 1) / l.rate) as tat) e
              offset 0) t) b);
end
$$;


-- The states of the limit keys that a claim met, in the order of the keys, under the lock of the group's limiter; and which of them are
-- paused, with the end of each pause, null for none. A paused key has no permit.
create function forebay._limits_met(
    p_group_id bigint, p_queue text, p_keys text[], v forebay._limiter_view,
    out states forebay._limit_state[], out paused text[], out ends timestamptz[])
language plpgsql volatile
-- planner: arrays
as $$
begin
    paused := '{}';
    ends := '{}';
    states := forebay._limit_states(p_group_id, p_keys, v.limits, v.at);
    if pg_sequence_last_value('forebay.key_pause_seq') is not null then
        -- A later statement than the one that read the lanes: it sees the call that appended a recheck row that was read.
        select p.keys, p.ends into paused, ends from forebay._paused_keys(p_queue, 'limit', p_keys, v.at) p;
        for v_nr in 1 .. cardinality(states) loop
            if states[v_nr].limit_key = any (paused) then
                states[v_nr].permits := 0;
                states[v_nr].tokens := 0;
            end if;
        end loop;
    end if;
end
$$;


-- Give the next turn to limit keys with parked jobs, after a claim: at once, or when their bucket has a token or their pause ends. A key
-- that is full (p_fills) gets it from a settlement, and a key that is paused without an end from the call that resumes it.
--
-- Invariant "no key is forgotten". Arrays belong together, except the last two: paused keys and the ends of their pauses. p_rates, p_bursts:
-- the rates of the keys, null for none.
create function forebay._give_turns(
    v forebay._limiter_view, p_queue text, p_priority integer, p_group_id bigint, p_keys text[], p_turns bigint[], p_fills boolean[],
    p_tokens bigint[], p_tats timestamptz[], p_rates double precision[], p_bursts integer[], p_paused text[], p_ends timestamptz[])
returns void
language plpgsql volatile
-- planner: arrays
as $$
declare
    a         record;
    v_private bigint;
begin
    with again as materialized (
        select k.key, k.turn, k.fills,
               case when not k.fills and k.tokens > 0 then v.at
                    -- Until then a claim counts jobs in flight anew: one of them may end without a turn for the key.
                    when k.fills then case when v.seed_until >= v.at then v.seed_until + interval '0.1 seconds' end
                    when p.key is null then forebay._next_start(k.tat, k.rate, k.burst)
                    else p.ends end as at
        from unnest(p_keys, p_turns, p_fills, p_tokens, p_tats, p_rates, p_bursts) k (key, turn, fills, tokens, tat, rate, burst)
        left join unnest(p_paused, p_ends) p (key, ends) on p.key = k.key
    )
    select array_agg(i.key order by i.key) filter (where i.at = v.at) as now_keys,
           array_agg(i.turn order by i.key) filter (where i.at = v.at) as now_turns,
           array_agg(i.key order by i.key) filter (where i.at <> v.at) as later_keys,
           array_agg(i.turn order by i.key) filter (where i.at <> v.at) as later_turns,
           array_agg(i.at order by i.key) filter (where i.at <> v.at) as later_at
    into a
    from again i;
    if num_nonnulls(a.now_keys, a.later_keys) = 0 then
        return;
    end if;
    v_private := forebay._record_limited_lane(p_queue, p_priority, p_group_id);
    perform forebay._announce_limit_keys(v_private, a.now_keys, a.now_turns);
    insert into forebay.deferred (run_at, lane, enqueued_at, job_id, attempt, kind, args, limit_key)
    select u.at, v_private, v.at, 0, (u.turn & 2147483647)::integer, '', '{}', u.key
    from unnest(a.later_keys, a.later_turns, a.later_at) u (key, turn, at);
    perform forebay._announce_due(min(u)) from unnest(a.later_at) u;
end
$$;


-- Pass the turns of limit keys on to ordering keys: a recheck row for each, with the number of the job that waits for the turn.
create function forebay._grant_turns(
    p_queue text, p_priority integer, p_group_id bigint, p_ordering_keys text[], p_limit_keys text[], p_seqs bigint[])
returns void
language plpgsql volatile
as $$
begin
    if p_ordering_keys <> '{}' then
        insert into forebay.log (lane, enqueued_at, kind, args, ordering_key, limit_key)
        select l.lane, forebay._now(), '', jsonb_build_object('seq', u.seq), u.ordering_key, u.limit_key
        from (select forebay._record_keyed_lane(p_queue, p_priority, p_group_id) as lane offset 0) l,
             unnest(p_ordering_keys, p_limit_keys, p_seqs) with ordinality u (ordering_key, limit_key, seq, nr)
        order by u.nr;
    end if;
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
    v_keys text[] := array(select distinct k from unnest(p_keys) k where k is not null);
begin
    if v_keys <> '{}' and p_looks then
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
