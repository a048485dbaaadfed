-- grant: operator, reader

-- The ordering keys and limit keys that jobs wait for, a row for each group, the key with the most
-- waiting jobs first. Visits every key that the log knows, and every job that waits for its
-- ordering key.
--
-- Parameters:
--   only_queue  null: all
--   most        1 to 1000 rows
--
-- Columns:
--   sort                 `ordering` or `limit`
--   waiting              jobs that a claim has met and that wait for their key. Jobs that no claim
--                        has met yet are not counted; a cancelled job is counted until its turn
--                        comes
--   running              jobs of the key that workers have
--   reason, until        why the next job of the key does not run, see below, and until when
--   blocking_jobs        the job of the ordering key that must end first, or the running jobs of
--                        the limit key, at most 10
--   blocking_workers     the worker of each; null: no worker has the job
--   held_by              the dead letter that holds the ordering key
--   first_job_id         the first waiting job
--   waits_for            the limit key that holds back the first waiting job of an ordering key;
--                        the reason is then `paused`, `concurrency`, `rate` or `breaker` of it
--   pause_at, resume_at  begin and end of a planned pause; null: none is planned, or it has no end
--   limits               the limits that one limit key has itself (forebay.limit_key()): an object
--                        with `rate`, `burst`, `concurrency`, as far as they are set; else null
--   breaker              the breaker of a limit key that has failed since its last success: an
--                        object with `failures` in a row, `threshold`, which opens it,
--                        `failed_at`, `error`, and if it is open `opened_at`, `probes` that failed
--                        since then, and `probe_at`, the earliest time of the next one; else null
--
-- Reasons:
--   group_closing, group_paused
--                the consumer group is being closed, or is paused
--   paused       the key is paused, or its limit key `waits_for` is, until `until`; null: until it
--                is resumed
--   held         the dead letter `held_by` holds the ordering key
--   retry        the job is behind one that runs again at `until`; null: that one is ready again
--   running      the job is behind one that a worker has
--   concurrency  the limit key has as many jobs running as it may have
--   rate         the limit key has no start left before `until`
--   breaker      the breaker of the limit key is open; the next probe runs at `until`, null: one
--                runs
--   queue_concurrency, queue_rate
--                the same limits of the queue
--   due          nothing holds the job back: a claim takes it
--   free         no job waits, and nothing would hold one back; only forebay.key() returns this
--
-- Errors: JQ001 a bad `most`.
-- Transaction: the caller's; reads only.
-- See: docs/howto/limits.md#pause-one-customer
-- pages: 500 + 2 a lane + 100 a waiting key + 5 a waiting job + 40 an open lease
create function forebay.keys(only_queue text default null, most integer default 100)
returns table (queue text, group_name text, sort text, key text, waiting bigint, running bigint, reason text, until timestamptz,
               blocking_jobs bigint[], blocking_workers text[], held_by bigint, first_job_id bigint, waits_for text, pause_at timestamptz, resume_at timestamptz, limits jsonb, breaker jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
begin
    if keys.most is null or keys.most not between 1 and 1000 then
        raise exception using errcode = 'JQ001', column = 'most',
            message = format('most %s is outside 1 to 1000', coalesce(keys.most::text, 'null'));
    end if;
    return query
    with found as materialized (
        select g.queue, g.name, w.*
        from (select p.group_id, p.ordering_key, null as limit_key, count(*) as waiting
              from forebay._all_ordering_parked() p
              where pg_sequence_last_value('forebay.key_seq') is not null
              group by p.group_id, p.ordering_key
              union all
              select i.group_id, null, t.limit_key, t.waiting
              from forebay.queue_group i cross join lateral forebay._waiting_limit_keys(i.group_id) t
              where pg_sequence_last_value('forebay.limit_parked_seq') is not null) w
        join forebay.queue_group g on g.group_id = w.group_id
        where keys.only_queue is null or g.queue = keys.only_queue
        order by w.waiting desc, g.queue, g.name, w.limit_key, w.ordering_key
        limit keys.most)
    select f.queue, f.name, k.*
    from (select i.group_id, i.queue, i.name,
                 coalesce(array_agg(i.ordering_key) filter (where i.ordering_key is not null), '{}') as ordering_keys,
                 coalesce(array_agg(i.limit_key) filter (where i.limit_key is not null), '{}') as limit_keys
          from found i group by i.group_id, i.queue, i.name) f
    cross join lateral forebay._show_keys(f.group_id, f.ordering_keys, f.limit_keys) k
    order by k.waiting desc, f.queue, f.name, k.sort, k.key;
end
$$;


-- Some keys of a group, as forebay.keys() shows them.
create function forebay._show_keys(p_group_id bigint, p_ordering_keys text[], p_limit_keys text[])
returns table (sort text, key text, waiting bigint, running bigint, reason text, until timestamptz, blocking_jobs bigint[],
               blocking_workers text[], held_by bigint, first_job_id bigint, waits_for text, pause_at timestamptz, resume_at timestamptz, limits jsonb, breaker jsonb)
language plpgsql volatile
-- planner: in order
as $$
#variable_conflict use_column
declare
    g          forebay.queue_group;
    v          forebay._limiter_view;
    v_position forebay.promotion;
    v_full     boolean;  -- the queue has as many jobs running as it may have
begin
    select i.* into g from forebay.queue_group i where i.group_id = p_group_id;
    v := forebay._read_limiter(p_group_id, g.queue);
    v_full := coalesce((select sum(o) from unnest(v.opens) o) >= (v.limits).concurrency, false);
    select p.* into v_position from forebay.promotion p order by p.no desc limit 1;

    return query
    with state as materialized (
        select s.* from forebay._key_states(p_group_id, p_ordering_keys) s),
    -- The limit keys asked for, and those for which ordering keys wait.
    met as materialized (
        select array(select s.waits_for from state s where s.waits_for is not null union select u from unnest(p_limit_keys) u) as limit_keys),
    running as materialized (
        select o.*, row_number() over (partition by o.sort, o.key order by o.nr) as rank, count(*) over (partition by o.sort, o.key) as jobs
        from met m cross join lateral forebay._running_of_keys(p_group_id, p_ordering_keys, m.limit_keys) o),
    -- Of an ordering key only the first one blocks.
    first_running as materialized (
        select r.sort, r.key, max(r.jobs) as jobs, array_agg(coalesce(j.job_id, r.seq) order by r.rank) as job_ids,
               array_agg(r.worker order by r.rank) as workers
        from running r
        cross join lateral forebay._job_ids(array[r.lane], array[r.xid], array[r.seq]) j
        where r.rank <= case r.sort when 'ordering' then 1 else 10 end
        group by r.sort, r.key),
    ordering_keys as (
        select 'ordering' as sort, s.ordering_key as key, cardinality(s.waiting_seqs) + p.jobs as waiting, s.open > 0 as is_taken, s.head, h.held_by,
               (select min(d.run_at) from forebay.deferred d
                join lateral (select l.audience from forebay.lane l where l.lane = d.lane limit 1) i on i.audience in (g.group_id, -g.group_id)
                where d.job_id = s.head
                  and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                           and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))) as retry_at,
               s.waits_for as limit_key, forebay._job_id_of(coalesce(s.waiting_seqs[1], p.first)) as first_job_id
        from state s
        -- A redriven letter does not stand in the way: its new job is the head.
        left join lateral (
            select case when d.redriven_as is null then d.dead_id end as held_by
            from (select i.dead_id, i.redriven_as from forebay.dead_letter i
                  where i.group_id = p_group_id and i.ordering_key = s.ordering_key and i.holds_key offset 0) d
            order by d.dead_id limit 1) h on true
        cross join lateral (
            select count(*) as jobs, (array_agg(i.seq order by i.parked_no))[1] as first from forebay.parked i
            where i.group_id = p_group_id and i.ordering_key = s.ordering_key and i.parked_no > s.taken_up_to) p),
    limits as materialized (
        select s.*, forebay._next_start(s.tat, s.rate, s.burst) as start_at
        from met m cross join lateral unnest(forebay._limit_states(p_group_id, m.limit_keys, v.limits, v.at)) s),
    limit_keys as (
        select 'limit' as sort, s.limit_key as key, s.waiting, false as is_taken, null::bigint as head, null::bigint as held_by,
               null::timestamptz as retry_at, s.limit_key,
               (select case when p.ordering_key is not null then forebay._job_id_of(p.seq) else coalesce(j.job_id, j.seq) end
                from (select i.* from forebay.limit_parked i
                      where s.waiting > 0 and i.group_id = p_group_id and i.limit_key = s.limit_key
                        and i.parked_no > s.taken_up_to order by i.parked_no limit 1) p
                -- The row of a job with an ordering key too may be gone: null fetches nothing.
                cross join lateral forebay._fetch_limited(
                    array[1::bigint], array[p.lane], array[p.xid], array[greatest(p.seq - 1, s.taken_seq)],
                    array[case when p.ordering_key is null then p.seq_to end], array[1::bigint]) f
                left join lateral unnest(f.jobs) j on true) as first_job_id
        from limits s where s.limit_key = any (p_limit_keys)),
    pauses as materialized (
        select z.sort, z.key, z.begins_at, z.resume_at, coalesce(z.begins_at <= v.at, true) as is_on
        from forebay.key_pause z where z.queue = g.queue and coalesce(z.resume_at > v.at, true)),
    -- The only place that decides about the reason.
    keys as (
        select k.*, coalesce(r.jobs, 0) as running, l.start_at, d.reason,
               case when d.reason = 'concurrency' then f.job_ids else r.job_ids end as job_ids,
               case when d.reason = 'concurrency' then f.workers else r.workers end as workers,
               case when z.is_on then z.resume_at when d.reason = 'paused' then x.resume_at end as until_resumed,
               case when z.begins_at > v.at then z.begins_at end as pause_at, z.resume_at,
               case when k.sort = 'ordering' and z.is_on is not true and d.reason in ('paused', 'concurrency', 'rate', 'breaker') then k.limit_key end as waits_for
        from (select * from ordering_keys union all select * from limit_keys) k
        left join first_running r on r.sort = k.sort and r.key = k.key
        left join pauses z on z.sort = k.sort and z.key = k.key
        left join limits l on l.limit_key = k.limit_key
        left join first_running f on f.sort = 'limit' and f.key = k.limit_key
        left join pauses x on x.sort = 'limit' and x.key = k.limit_key
        cross join lateral (
            select case when g.closing_at is not null then 'group_closing'
                        when forebay._paused_since(g.paused_at, g.resume_at) is not null then 'group_paused'
                        when z.is_on then 'paused'
                        when k.held_by is not null then 'held'
                        when k.head is not null then 'retry'
                        when k.is_taken then 'running'
                        when x.is_on then 'paused'
                        when (f.jobs >= l.concurrency or l.tokens = 0)
                             and exists (select from forebay.breaker b
                                         where b.queue = g.queue and b.key = k.limit_key and b.opened_at is not null) then 'breaker'
                        when f.jobs >= l.concurrency then 'concurrency'
                        when l.tokens = 0 then 'rate'
                        when v_full then 'queue_concurrency'
                        when v.free_slots <= 0 then 'queue_rate'
                        when k.waiting > 0 then 'due'
                        else 'free' end as reason) d)
    select k.sort, k.key, k.waiting, k.running, k.reason,
           case k.reason when 'paused' then k.until_resumed
                         when 'retry' then k.retry_at
                         when 'rate' then k.start_at
                         when 'breaker' then case when k.running = 0 then k.start_at end
                         when 'queue_rate' then forebay._next_start(v.tat, (v.limits).rate, (v.limits).burst) end,
           case when k.head is not null then array[k.head] else coalesce(k.job_ids, '{}') end,
           case when k.head is not null then array[null::text] else coalesce(k.workers, '{}') end,
           k.held_by, k.first_job_id, k.waits_for, k.pause_at, case when k.pause_at is not null then k.resume_at end,
           case when k.sort = 'limit' then (
               select forebay._key_limit_facts(i) from forebay.key_limits i
               where pg_sequence_last_value('forebay.key_limits_seq') is not null and i.queue = g.queue and i.key = k.key
                 and num_nonnulls(i.rate, i.concurrency) > 0) end,
           case when k.sort = 'limit' then (
               select forebay._breaker_facts(b) from forebay.breaker b where b.queue = g.queue and b.key = k.key) end
    from keys k;
end
$$;


-- The unsettled jobs of some keys in batches of open leases, in the order in which they were claimed.
create function forebay._running_of_keys(p_group_id bigint, p_ordering_keys text[], p_limit_keys text[])
returns table (sort text, key text, nr bigint, worker text, lane bigint, xid xid8, seq bigint)
language sql stable
as $$
    select k.sort, k.key, row_number() over (order by b.claimed_at, b.claim_no, k.nr),
           e.worker, coalesce(b.lanes[k.nr], b.lane), case when cardinality(b.xids) = 1 then b.xids[1] else b.xids[k.nr] end, b.seqs[k.nr]
    from forebay.lease e
    cross join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f
    cross join lateral (select i.* from forebay.batch i
                        where i.lease_id = e.lease_id and i.claim_no >= f.floor and i.group_id = p_group_id offset 0) b
    cross join lateral (
        select 'ordering' as sort, u.key, u.nr from unnest(b.keys) with ordinality u (key, nr) where u.key = any (p_ordering_keys)
        union all
        select 'limit', u.key, u.nr from unnest(b.limit_keys) with ordinality u (key, nr) where u.key = any (p_limit_keys)) k
    where e.closed_at is null
      and not exists (select from forebay.settlement s
                      where s.lease_id = b.lease_id and s.claim_no = b.claim_no
                        and (s.offsets is null or k.nr::smallint = any (s.offsets)))
$$;
