-- grant: operator, reader

-- What decides whether and when a job starts, a row for each group of its queue; `forebay doctor
-- --job` and `client.explain()` turn it into a sentence. The state of the job is in forebay.job(),
-- its failed attempts in forebay.job_history().
--
-- Facts:
--   is_same_cluster        false: the log was restored from another cluster, and nothing runs
--   paused_at, resume_at, closing_at
--                          of the group
--   is_served              a living worker serves the group: it says so, has jobs of it, or looks
--                          for some
--   is_watched             one of them is idle
--   workers, others        names of living workers that serve the group, and of other living
--                          workers, at most 5 each
--   silent                 those of `workers` whose heartbeat is overdue: for how many seconds; they
--                          have perhaps died
--   kind_queue, has_kinds  the queue that workers have declared for the job's kind; whether they
--                          have declared any kind for its queue: deliverers, drains and workers in
--                          SQL declare none
--   app                    the application that served the group last, as its worker said
--   tick_ended_at, tick_expected_by
--                          of the ticks that serve the group, as forebay.ticks() has them
--   last_claim_at, last_claim_by, last_claim_alive
--                          of the group, in any lane
--   holder                 of a claimed or running job: `worker`, `silent_seconds`,
--                          `suspect_seconds`, `lease_seconds`, `jobs`, `running`
--   ordering_key, key_job  the job of the key that must end first
--   held_by                the dead letter that holds the key
--   paused_key, key_paused_at, key_resume_at
--                          while a key of the job is paused: ordering or limit; since when, and
--                          when the pause ends, null: when it is resumed
--   key                    of a job that is parked behind its key: the row of forebay.key()
--   limit_key, limits, running, key_running, permits, key_permits, next_start_at, key_next_start_at
--                          of a queue or key with limits
--   breaker_opened_at, probe_at
--                          while the breaker of the limit key is open: since when; from when on a
--                          job may pass, null: one does now
--   before                 ready jobs that come first: of a better priority, or earlier in the
--                          job's lane; at most 10,001
--   is_suspect             it was running when its worker was lost: it runs alone
--
-- If no such job is visible, there is one row without a group. Its facts: `last_id`, the newest
-- number of the log; `is_past_retention`, segments with such numbers were removed; `writers`, the
-- sessions with an open transaction that has enqueued jobs.
--
-- Transaction: the caller's; reads only.
create function forebay.explain_job(job_id bigint)
returns table (group_name text, facts jsonb)
language plpgsql volatile security definer
rows 2
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_id    constant bigint := explain_job.job_id;
    v_group record;
    v_row   record;
begin
    for v_group in
        select q.queue, g.group_id, g.name, forebay._paused_since(g.paused_at, g.resume_at) as paused_at, g.resume_at, g.closing_at
        from (select i.queue
              from (select r.lane from forebay._rows_of(v_id) r union select d.lane from forebay.deferred d where d.job_id = v_id) u
              cross join lateral (select l.queue from forebay.lane l where l.lane = u.lane limit 1) i
              limit 1) q
        left join forebay.queue_group g on g.queue = q.queue
        order by g.created_at, g.group_id
    loop
        select r.xid, r.seq, r.lane, r.kind, r.ordering_key, r.limit_key, i.priority, i.audience into v_row
        from forebay._rows_of(v_id) r
        cross join lateral (select l.priority, l.audience from forebay.lane l where l.lane = r.lane limit 1) i
        where i.audience in (0, v_group.group_id, -v_group.group_id)
        order by r.seq desc limit 1;
        group_name := coalesce(v_group.name, 'default');
        facts := jsonb_build_object(
                     'is_same_cluster', forebay._belongs_here(), 'paused_at', v_group.paused_at, 'resume_at', v_group.resume_at, 'closing_at', v_group.closing_at,
                     'is_suspect', coalesce(v_row.audience < 0, false),
                     'kind_queue', (select k.queue from forebay.kind_queue k where k.kind = v_row.kind),
                     'has_kinds', exists (select from forebay.kind_queue k where k.queue = v_group.queue))
                 || forebay._explain_workers(v_group.group_id, v_group.queue, group_name, v_row.seq)
                 || forebay._explain_key(v_group.group_id, v_row.ordering_key, v_id)
                 || forebay._explain_limits(v_group.group_id, v_group.queue, v_row.limit_key)
                 || coalesce((select jsonb_build_object('paused_key', p.sort, 'key_paused_at', coalesce(p.begins_at, p.paused_at), 'key_resume_at', p.resume_at)
                              from forebay.key_pause p
                              where p.queue = v_group.queue
                                and coalesce(p.begins_at <= forebay._now(), true) and coalesce(p.resume_at > forebay._now(), true)
                                and (p.sort, p.key) in (('ordering', v_row.ordering_key), ('limit', v_row.limit_key))
                              order by p.sort desc limit 1), '{}')
                 || coalesce((select jsonb_build_object('breaker_opened_at', b.opened_at, 'probe_at', b.probe_at)
                              from forebay.breaker b
                              where b.queue = v_group.queue and b.key = v_row.limit_key and b.opened_at is not null), '{}')
                 || forebay._explain_parked(v_group.group_id, v_row.ordering_key, v_row.limit_key, v_row.xid, v_row.seq)
                 || jsonb_build_object('before', forebay._ready_before(v_group.group_id, v_group.queue, v_row.priority, v_row.lane, v_row.xid, v_row.seq));
        return next;
    end loop;
    if not found then
        group_name := null;
        facts := jsonb_build_object(
            'last_id', coalesce(pg_sequence_last_value('forebay.log_seq'), 0),
            'is_past_retention',
            v_id < (select min(s.lo) from forebay.segment s where s.removed_at is null)
            or exists (select from forebay.segment s where s.lo <= v_id and s.hi > v_id and s.removed_at is not null),
            'writers', (
                select coalesce(jsonb_agg(w.name), '[]') from (
                    select distinct concat_ws(' ', nullif(a.application_name, ''), '(pid ' || a.pid || ')') as name
                    from pg_locks l join pg_class c on c.oid = l.relation join pg_stat_activity a on a.pid = l.pid
                    where l.mode = 'RowExclusiveLock' and l.database = (select d.oid from pg_database d where d.datname = current_database())
                      and c.relnamespace = 'forebay'::regnamespace and (c.relname ~ E'^log_\\d+$' or c.relname = 'deferred')
                      and l.pid <> pg_backend_pid()
                    order by name limit 5) w));
        return next;
    end if;
end
$$;


-- Was this schema made in, or adopted by, this cluster and database?
create function forebay._belongs_here() returns boolean
language sql stable
as $$
    select (c.system_identifier, c.database_oid) is not distinct from (h.system_identifier, h.database_oid)
    from forebay._identity() h
    left join lateral (select * from forebay.cluster order by cluster_no desc limit 1) c on true
$$;


-- Facts about the workers of a group, and about the one that has the row p_seq.
create function forebay._explain_workers(p_group_id bigint, p_queue text, p_group_name text, p_seq bigint) returns jsonb
language sql volatile
as $$
    with alive as materialized (
        select l.lease_id, l.worker, l.details, l.suspect_seconds, l.lease_seconds, h.running_jobs,
               extract(epoch from clock_timestamp() - h.heartbeat_at)::float8 as silent, forebay._silent_after(l, h.running_jobs) as silent_after
        from forebay.lease l
        left join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                           where i.lease_id = l.lease_id order by i.heartbeat_at desc limit 1) h on true
        where l.closed_at is null),
    open_jobs as materialized (select o.group_id, o.lease_id, o.seq from forebay._open_jobs() o),
    newest as (
        select b.claimed_at, b.lease_id
        from (select distinct i.lane from forebay.lane i where i.queue = p_queue) i
        cross join lateral (select b.claimed_at, b.lease_id from forebay.batch b
                            where b.group_id = p_group_id and b.lane = i.lane and b.lease_id is not null
                            order by b.no desc limit 1) b
        order by b.claimed_at desc limit 1),
    ticked as materialized (
        select max(t.ended_at) as ended_at, max(t.expected_by) as expected_by
        from forebay.ticks() t where t.group_name = p_group_name and p_queue = any (t.queues)),
    names as (
        select a.worker, a.silent, a.silent > a.silent_after as is_silent, exists (select from open_jobs o where o.group_id = p_group_id and o.lease_id = a.lease_id)
                         or coalesce(a.details -> 'queues' ? p_queue and coalesce(a.details ->> 'group', 'default') = p_group_name, false) as serves
        from alive a where a.silent <= a.lease_seconds)
    select jsonb_build_object(
        'is_served', p_group_id is not null
                     and (forebay._leader_of(p_group_id) is not null and exists (select from names)
                          or exists (select from names n where n.serves)),
        'is_watched', p_group_id is not null and forebay._leader_of(p_group_id) is not null and exists (select from names),
        'workers', coalesce((select jsonb_agg(n.worker) from (select i.worker from names i where i.serves order by 1 limit 5) n), '[]'),
        'silent', coalesce((select jsonb_object_agg(n.worker, n.silent)
                            from (select i.worker, i.silent from names i where i.serves and i.is_silent order by 1 limit 5) n), '{}'),
        'others', coalesce((select jsonb_agg(n.worker) from (select i.worker from names i where not i.serves order by 1 limit 5) n), '[]'),
        'app', (select a.app from forebay._known_apps() a where a.group_name = p_group_name and a.queues ? p_queue limit 1),
        'tick_ended_at', (select t.ended_at from ticked t),
        'tick_expected_by', (select t.expected_by from ticked t),
        'last_claim_at', (select n.claimed_at from newest n),
        'last_claim_by', (select l.worker from newest n join forebay.lease l using (lease_id)),
        'last_claim_alive', exists (select from newest n join alive a using (lease_id) where a.silent <= a.lease_seconds),
        'holder', (
            select jsonb_build_object('worker', a.worker, 'silent_seconds', a.silent, 'suspect_seconds', a.suspect_seconds,
                                      'lease_seconds', a.lease_seconds,
                                      'jobs', (select count(*) from open_jobs i where i.lease_id = o.lease_id),
                                      'running', coalesce(cardinality(a.running_jobs), 0))
            from open_jobs o join alive a using (lease_id)
            where o.group_id = p_group_id and o.seq = p_seq limit 1))
$$;


-- Facts about the ordering key of a job: which job of the key must end first. Jobs that no cursor has passed are not looked at.
create function forebay._explain_key(p_group_id bigint, p_ordering_key text, p_job_id bigint) returns jsonb
language plpgsql stable
as $$
declare
    v_key    record;
    v_first  bigint;
begin
    if p_ordering_key is null or p_group_id is null then
        return jsonb_build_object('ordering_key', p_ordering_key);
    end if;
    select * into v_key from forebay._key_states(p_group_id, array[p_ordering_key]);
    -- In this order: a job in a new row, for example a retry; those in a worker; requeued ones; parked ones.
    v_first := coalesce(
        v_key.head,
        (select u.job from forebay.key_run t cross join unnest(coalesce(t.offsets, array[t.place]), coalesce(t.jobs, array[t.low_seq])) u (place, job)
         where t.group_id = p_group_id and t.ordering_key = p_ordering_key and t.no between v_key.since and v_key.no
           and t.lease_id is not null
           and exists (select from forebay.batch b where b.lease_id = t.lease_id and b.claim_no = t.claim_no)
           and not exists (select from forebay.settlement s
                           where s.lease_id = t.lease_id and s.claim_no = t.claim_no
                             and (s.offsets is null or u.place = any (s.offsets)))
         order by t.no, u.place limit 1),
        forebay._job_id_of(v_key.waiting_seqs[1]),
        forebay._job_id_of((select p.seq from forebay.parked p
                            where p.group_id = p_group_id and p.ordering_key = p_ordering_key and p.parked_no > v_key.taken_up_to
                            order by p.parked_no limit 1)));
    return jsonb_build_object(
        'ordering_key', p_ordering_key, 'key_job', nullif(v_first, p_job_id),
        'held_by', (select min(d.dead_id)
                    from (select i.dead_id from forebay.dead_letter i
                          where i.group_id = p_group_id and i.ordering_key = p_ordering_key and i.holds_key and i.redriven_as is null offset 0) d));
end
$$;


-- Of a job that is parked behind its key: why the key does not run.
create function forebay._explain_parked(p_group_id bigint, p_ordering_key text, p_limit_key text, p_xid xid8, p_seq bigint) returns jsonb
language sql volatile
as $$
    select coalesce((
        select jsonb_build_object('key', to_jsonb(k) || jsonb_build_object('queue', g.queue, 'group', g.name))
        from forebay.queue_group g
        cross join lateral forebay._show_keys(g.group_id, array_remove(array[p_ordering_key], null),
                                                  array_remove(array[case when p_ordering_key is null then p_limit_key end], null)) k
        where g.group_id = p_group_id
          and case when p_ordering_key is not null then forebay._is_parked(p_group_id, p_ordering_key, p_seq)
                   when p_limit_key is not null then forebay._is_limit_parked(p_group_id, p_limit_key, p_xid, p_seq)
                   else false end), '{}')
$$;


-- The job of a row of the log, by the row's number.
create function forebay._job_id_of(p_seq bigint) returns bigint
language plpgsql stable
-- planner: by number
as $$
declare
    v_segment bigint;
    v_job_id  bigint;
begin
    select s.segment_id into v_segment from forebay.segment s
    where s.lo <= p_seq and s.hi > p_seq and s.removed_at is null and forebay._has_table(s.segment_id);
    if v_segment is null then
        return null;
    end if;
    execute format('select coalesce(l.job_id, l.seq) from forebay.log_%s l where l.seq = $1', v_segment) into v_job_id using p_seq;
    return v_job_id;
end
$$;


-- Facts about the limits of a queue and of one of its limit keys.
create function forebay._explain_limits(p_group_id bigint, p_queue text, p_limit_key text) returns jsonb
language plpgsql volatile
as $$
declare
    v     forebay._limiter_view;
    v_key forebay._limit_state;
begin
    if pg_sequence_last_value('forebay.limiter_seq') is null
       or not exists (select from forebay.queue_limits l where l.queue = p_queue) then
        return jsonb_build_object('limit_key', p_limit_key);
    end if;
    v := forebay._read_limiter(coalesce(p_group_id, 0), p_queue);
    if p_limit_key is not null then
        v_key := (forebay._limit_states(p_group_id, array[p_limit_key], v.limits, v.at))[1];
    end if;
    return jsonb_build_object(
        'limit_key', p_limit_key,
        'limits', to_jsonb(v.limits) - 'queue' - 'starts_set_at'
                  || case when v_key.limits_no is null then '{}'
                          else jsonb_build_object('key_rate', v_key.rate, 'key_burst', v_key.burst, 'key_concurrency', v_key.concurrency) end,
        'running', (select coalesce(sum(o), 0) from unnest(v.opens) o),
        'key_running', coalesce(cardinality(v_key.leases), 0),
        'permits', case when (v.limits).rate is not null then forebay._permits(v.tat, (v.limits).rate, (v.limits).burst, v.at) end,
        'key_permits', case when v_key.rate is not null then v_key.tokens end,
        'next_start_at', forebay._next_start(v.tat, (v.limits).rate, (v.limits).burst),
        'key_next_start_at', forebay._next_start(v_key.tat, v_key.rate, v_key.burst));
end
$$;


-- When a bucket lets the next job start; null without a rate, or if the bucket was never used.
create function forebay._next_start(p_tat timestamptz, p_rate double precision, p_burst integer) returns timestamptz
language sql immutable
as $$ select p_tat - make_interval(secs => (coalesce(p_burst, ceil(p_rate)) - 1) / p_rate) $$;


-- How many ready jobs of a queue come before a row: those of a better priority, and earlier ones of its lane. At most 10,001.
--
-- Rows behind it in its lane are not read: millions may wait there. Of a lane with ordering keys, where the order is that of the numbers, it is close.
create function forebay._ready_before(p_group_id bigint, p_queue text, p_priority integer, p_lane bigint, p_xid xid8, p_seq bigint) returns integer
language plpgsql stable
-- planner: in order
as $$
declare
    v_own   forebay._cursor[];
    v_better forebay._cursor[];
    v_count integer;
begin
    select array_agg(c.cursor) filter (where c.lane = p_lane), array_agg(c.cursor) filter (where c.lane <> p_lane)
    into v_own, v_better
    from (select l.lane, row(row_number() over (), l.lane, case l.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end,
                             b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)::forebay._cursor as cursor
          from (select distinct j.lane, j.audience from forebay.lane j
                where j.queue = p_queue and j.audience in (0, p_group_id, -p_group_id)
                  and (j.priority < p_priority or j.lane = p_lane)) l
          left join forebay.queue_group g on g.group_id = p_group_id
          left join lateral (select i.* from forebay.batch i
                             where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b on true
          left join forebay.segment s on s.segment_id = b.pos_segment) c;
    if p_seq is null then
        return 0;
    end if;
    execute format('select count(*) from (select from (%s) u union all select from (%s) u limit 10001) c',
                   forebay._unread_sql(v_better, 'l.lane'),
                   replace(forebay._unread_sql(v_own, 'l.lane', format('(i.xid, i.seq) < (%L, %L)', p_xid, p_seq)), '$1', '$2'))
        into v_count using coalesce(v_better, '{}'), coalesce(v_own, '{}');
    return v_count;
end
$$;
