-- grant: worker

-- Take up to `n` jobs of a queue, one row for each. Without a row wait a moment, then call again: the
-- call has found nothing, or has only cleared the way for the next one.
--
-- The jobs of one call are of one priority. Of jobs with the same ordering key, a worker gets the
-- next one when the one before has ended. A job that was running when its worker was lost comes
-- alone.
--
-- Parameters:
--   queue       named in forebay.enter()
--   worker      the token of forebay.enter()
--   n           1 to 1000
--   group_name  as in forebay.enter()
--   sleep       for how long the caller waits if it gets nothing, at most a minute: until then
--               enqueues notify it by `NOTIFY forebay_wakeup` with the queue's name. Null: it does
--               not listen
--
-- Columns:
--   token           names the job for forebay.done() and its like; only this claim has it
--   id              of the job; text or a 64-bit integer in the caller's language
--   attempt         number of this attempt, from 1
--   max_attempts    after that one a failed job is dead
--   expires_at      it was not to be started later
--   lease_until     until then the job is the caller's, and longer after each forebay.extend()
--   others          as at its enqueue
--
-- While no Python worker does maintenance, the call also lets due jobs become ready, and takes jobs
-- from workers that are lost. What fails there is a warning.
--
-- Errors: JQ001 a bad value, JQ010 the lease has ended, JQ012, JQ014 no such group, JQ030, 55P03 a
--   lock was not free in 5 s.
-- Transaction: alone. Commits asynchronously: a durable settlement makes the earlier claim durable.
-- Locks: that of the worker; then as forebay.claim_v1().
-- See: docs/howto/workers-in-other-languages.md
--
-- Inside: Invariants "nothing left out", "order by key" (docs/design/other-languages.md). The claim
-- comes first, since it must not have written; the lock of the worker draws no transaction id.
-- pages: 400 + 20 a job + 6 a lane + 40 an open lease + 5 an open transaction
create function forebay.take(
    queue text, worker text, n integer default 1, group_name text default 'default', sleep interval default null)
returns table (token text, id bigint, kind text, args jsonb, attempt integer, max_attempts integer, tag text, correlation_id text,
               headers jsonb, ordering_key text, limit_key text, enqueued_at timestamptz, expires_at timestamptz, lease_until timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    v_lease   constant bigint := forebay._lease_of(take.worker);
    v_millis  integer;
    v_seconds double precision;
    v_group   bigint;
    v_last    record;
    v_no      bigint;
    v_floor   bigint;
    v_lane    record;
    v_jobs    text;
    v_later   bigint[] := '{}';
    v_until   timestamptz;
begin
    perform forebay._require('n', take.n between 1 and 1000, take.n::text, '1 to 1000'),
            forebay._require('sleep', coalesce(take.sleep between interval '0' and interval '1 minute', true), take.sleep::text, 'at most a minute'),
            forebay._require_alone('forebay.take()'),
            -- In a transaction that is left open, the claim would hold up others.
            set_config('idle_in_transaction_session_timeout', '5s', true);
    v_millis := extract(epoch from take.sleep) * 1000;
    execute 'lock table only forebay.lock_worker_' || (hashint8(v_lease) & 15) || ' in share update exclusive mode';
    -- Later statements than the lock: they see the batches of this worker's earlier calls.
    select l.lease_seconds into v_seconds from forebay.lease l where l.lease_id = v_lease and l.closed_at is null;
    if not found then
        perform forebay._refuse_ended(take.worker, v_lease);
    end if;
    select g.group_id into v_group from forebay.queue_group g where g.queue = take.queue and g.name = take.group_name and not g.is_implied;
    if not found then
        perform forebay._refuse_group(take.queue, take.group_name);
    end if;
    select b.claim_no, b.floor into v_last from forebay.batch b where b.lease_id = v_lease order by b.claim_no desc limit 1;
    -- Not given out again by a crash that undoes the claim: the time in microseconds, and eight random bits.
    v_no := greatest(coalesce(v_last.claim_no, 0) + 1,
                     ((extract(epoch from clock_timestamp()) * 1000000)::bigint << 8) | floor(random() * 256)::bigint);
    v_floor := forebay._first_open_claim(v_lease, v_last.floor, v_no);
    for v_lane in
        select r.lane, r.is_suspect, r.is_limited and l.sort = 'keyed' as is_rated, l.sort = 'keyed' as is_keyed
        from forebay.ready_v1(array[v_group], v_millis) r
        cross join lateral (select i.sort from forebay.lane i where i.lane = r.lane limit 1) l
        cross join (select random() as u offset 0) d
        -- One of ten calls serves any priority first, by chance.
        order by case when d.u < 0.1 then md5(r.priority || ' ' || d.u) end, r.priority, not r.is_private, r.is_suspect, random()
    loop
        v_jobs := forebay.claim_v1(v_lease, v_no, v_floor, v_group, v_lane.lane, case when v_lane.is_rated then 1 else take.n end);
        exit when v_jobs is not null or not forebay._is_alone();
    end loop;
    if v_jobs is not null then
        if v_lane.is_keyed then
            v_later := forebay._give_back_later(v_lease, v_no);
        end if;
        v_until := forebay._now() + make_interval(secs => v_seconds);
        return query
        select format('%s-%s-%s%s', v_lease, v_no, j.nr, case when j.job -> 12 ? 'forebay-subject' then 's' end),
               coalesce(nullif((j.job ->> 4)::bigint, 0), (j.job ->> 0)::bigint), j.job ->> 1, j.job -> 3,
               coalesce((j.job ->> 7)::integer, 0) + 1,
               coalesce((j.job ->> 9)::integer, forebay._queue_attempts(take.queue), forebay._setting_value('max_attempts'))::integer,
               j.job ->> 10, j.job ->> 11, nullif(j.job -> 12, 'null'), j.job ->> 5, j.job ->> 13,
               forebay._instant((j.job ->> 2)::bigint),
               coalesce(forebay._instant((j.job ->> 6)::bigint), forebay._instant((j.job ->> 2)::bigint) + interval '30 days'), v_until
        from jsonb_array_elements(('[' || v_jobs || ']')::jsonb) with ordinality j (job, nr)
        where j.nr <> all (v_later)
        order by j.nr;
        if v_lane.is_suspect then
            perform forebay.start_suspect_v1(v_lease, v_no);
        end if;
    end if;
    perform forebay._give_sign(v_lease);
    if forebay._leader_of(0) is null then
        perform forebay._look_after_claims(v_lease);
    end if;
end
$$;


-- Microseconds since 1970 as a time, exactly.
create function forebay._instant(p_micros bigint) returns timestamptz
language sql immutable
as $$ select timestamptz '1970-01-01 00:00:00+00' + make_interval(secs => p_micros / 1000000) + (p_micros % 1000000) * interval '1 microsecond' $$;


-- Errors: JQ014.
create function forebay._refuse_group(p_queue text, p_group_name text) returns void
language plpgsql immutable
as $$
begin
    raise exception using errcode = 'JQ014',
        message = format('queue %s has no group %s', coalesce(quote_literal(left(p_queue, 128)), 'null'), coalesce(quote_literal(left(p_group_name, 128)), 'null')),
        detail = jsonb_build_object('queue', left(p_queue, 128), 'group', left(p_group_name, 128)),
        hint = 'Name the queue in forebay.enter(), with this group.';
end
$$;


-- The oldest claim of a lease with a job that has not ended, from its last floor on; p_next if there is none.
--
-- Batches that have ended are passed over once: the next call begins where this one ended.
create function forebay._first_open_claim(p_lease_id bigint, p_floor bigint, p_next bigint) returns bigint
language plpgsql stable
as $$
declare
    v_batch record;
begin
    for v_batch in
        select b.claim_no, cardinality(b.seqs) as size from forebay.batch b
        where b.lease_id = p_lease_id and b.claim_no >= coalesce(p_floor, 0) order by b.claim_no
    loop
        if (select coalesce(bool_or(s.offsets is null), false) or coalesce(sum(cardinality(s.offsets)), 0) >= v_batch.size
            from forebay.settlement s where s.lease_id = p_lease_id and s.claim_no = v_batch.claim_no) is not true then
            return v_batch.claim_no;
        end if;
    end loop;
    return p_next;
end
$$;


-- Of a claim, release the jobs of ordering keys of which the lease has an earlier open job; returns their offsets. They are requeued behind it.
--
-- The settlement takes no lock that a claim waits for: its number is not above 0.
create function forebay._give_back_later(p_lease_id bigint, p_claim_no bigint) returns bigint[]
language plpgsql volatile
as $$
declare
    v_later  bigint[];
    v_status text;
begin
    with batch as materialized (
        select b.keys, forebay._keys_before(b.group_id, p_lease_id, p_claim_no, b.keys) as before
        from forebay.batch b where b.lease_id = p_lease_id and b.claim_no = p_claim_no)
    select array_agg(u.nr order by u.nr) into v_later
    from batch b cross join lateral (
        select k.key, k.nr, row_number() over (partition by k.key order by k.nr) as nth from unnest(b.keys) with ordinality k (key, nr)) u
    where u.nth > 1 or u.key = any (b.before);
    if v_later is null then
        return '{}';
    end if;
    select s.status into v_status from forebay.settle_v1(p_lease_id, jsonb_build_array(jsonb_build_object(
        'claim_no', p_claim_no, 'flush_no', 0,
        'ended', (select jsonb_agg(jsonb_build_object('offset', o, 'outcome', 'released')) from unnest(v_later) o)))) s;
    if v_status is distinct from 'settled' then
        raise exception 'jobs that wait for their ordering key were not given back: %', v_status;
    end if;
    return v_later;
end
$$;


-- A sign of life of a lease, unless there is a recent one. Heartbeats are also how silence is observed, so they come several times in the
-- shortest lease.
create function forebay._give_sign(p_lease_id bigint) returns void
language sql volatile
as $$
    insert into forebay.heartbeat (lease_id, heartbeat_at, backend_pid, running_jobs)
    select p_lease_id, n.at, pg_backend_pid(), forebay._held_jobs(p_lease_id)
    from (select forebay._now() as at offset 0) n
    where not exists (
        select from forebay.heartbeat h
        where h.lease_id = p_lease_id
          and h.heartbeat_at > n.at - make_interval(secs => least(2, (select min(l.lease_seconds) / 4 from forebay.lease l where l.closed_at is null)))
          and h.heartbeat_at <= n.at
        limit 1)
$$;


-- The first thousand jobs that a lease holds, oldest first; null: none.
create function forebay._held_jobs(p_lease_id bigint) returns bigint[]
language sql stable
as $$
    select array_agg(h.job_id order by h.claim_no, h.place)
    from (select i.* from forebay._held_places(p_lease_id) i order by i.claim_no, i.place limit 1000) h
$$;


-- The jobs of a lease that have not ended, with their places.
create function forebay._held_places(p_lease_id bigint) returns table (claim_no bigint, place integer, job_id bigint, headers jsonb, group_id bigint)
language sql stable
as $$
    select b.claim_no, u.nr::integer, coalesce(r.job_id, r.seq), r.headers, b.group_id
    from (select i.floor from forebay.batch i where i.lease_id = p_lease_id order by i.claim_no desc limit 1) f
    join forebay.batch b on b.lease_id = p_lease_id and b.claim_no >= f.floor
    cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
    cross join lateral forebay._row(coalesce(b.lanes[u.nr], b.lane), coalesce(b.xids[u.nr], b.xids[1]), u.seq) r
    where not exists (select from forebay.settlement s
                      where s.lease_id = p_lease_id and s.claim_no = b.claim_no and (s.offsets is null or u.nr::smallint = any (s.offsets)))
$$;


-- What further claims need while no worker leads maintenance: due jobs become ready, and at most one lost lease is revoked.
--
-- An error must not undo the claim. It is a warning in the log of the server.
create function forebay._look_after_claims(p_lease_id bigint) returns void
language plpgsql volatile
as $$
begin
    begin
        perform forebay._promote(1000);
    exception when others then
        raise warning 'forebay.take(): due jobs were not promoted: % (%)', sqlerrm, sqlstate;
    end;
    begin
        perform forebay._revoke_silent(p_lease_id);
    exception when others then
        raise warning 'forebay.take(): no lost worker was looked for: % (%)', sqlerrm, sqlstate;
    end;
end
$$;


-- Revoke the lease that is silent for longest, if others were heard meanwhile; not that of the caller.
--
-- Invariant "silence is observed": see forebay._is_observed(). A lease whose row an open transaction has locked by its settlement is skipped.
-- Locks: the lease (UPDATE), if it is free.
create function forebay._revoke_silent(p_lease_id bigint) returns void
language plpgsql volatile
as $$
declare
    v_at   constant timestamptz := forebay._now();
    v_lost record;
begin
    for v_lost in
        select l.lease_id, l.lease_seconds from forebay._silent_leases(v_at, null) l
        where l.silent > l.lease_seconds and l.lease_id <> p_lease_id order by l.silent desc
    loop
        if forebay._is_observed(v_at, v_lost.lease_seconds) then
            perform from forebay.lease l where l.lease_id = v_lost.lease_id and l.closed_at is null for update skip locked;
            if found then
                perform forebay._revoke(v_lost.lease_id, 'revoked', true);
                return;
            end if;
        end if;
    end loop;
end
$$;


-- Were workers heard for this time before a moment, at intervals of at most half of it?
--
-- A jump of the clock, an outage and a restart of the server leave a longer interval. Signs from the future prove nothing.
create function forebay._is_observed(p_at timestamptz, p_seconds double precision) returns boolean
language sql stable
as $$
    select coalesce(min(s.at) <= p_at - make_interval(secs => p_seconds) and max(s.gap) <= make_interval(secs => p_seconds / 2), false)
    from (select g.at, g.at - lag(g.at) over (order by g.at) as gap
          from (select h.heartbeat_at as at
                from forebay.lease l
                cross join lateral (select i.heartbeat_at from forebay.heartbeat i
                                    where i.lease_id = l.lease_id and i.heartbeat_at > p_at - make_interval(secs => 1.5 * p_seconds)
                                      and i.heartbeat_at <= p_at) h
                where l.closed_at is null
                union all select p_at) g) s
$$;
