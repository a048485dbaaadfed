-- What is known of synchronisations: what their passes did, how many jobs waited, which breakers are open, and what audits found.
--
-- All of it is appended; upkeep folds and removes what is old. Counts of a pass are part of the settlement of its jobs: they
-- are there exactly if that is. Invariant "counted with the settlement": docs/design/reconcile.md.


-- What passes and direct writes did. Rows are folded as they grow old: level 0 as they came, 1 by the minute, 2 by the hour,
-- 3 all that is older than retention, at -infinity. The sum over all levels is all that ever happened.
create table forebay.sync_count (
    sync     text not null,
    at       timestamptz not null,
    level    smallint not null default 0 check (level between 0 and 3),
    outcome  text not null,
    tag      text,
    priority integer,                    -- null: of no job, as a direct write
    count    bigint not null
);
create index sync_count_by_time on forebay.sync_count (sync, at);
create index sync_count_by_level on forebay.sync_count (level, at);

-- How many jobs were due, once a minute while passes run or somebody asks.
create table forebay.sync_sample (
    sync    text not null,
    at      timestamptz not null,
    due     bigint not null,             -- without those that are left out of alerts
    due_all bigint not null,
    waiting bigint not null              -- also what is in its grace, or is to be done later
);
create index sync_sample_by_time on forebay.sync_sample (sync, at);

-- Circuit breakers, when they open, fail again and close.
create table forebay.sync_breaker (
    sync       text not null,
    at         timestamptz not null,
    who        text not null,            -- the worker, or the process of direct writes
    place      text not null check (place in ('pass', 'direct')),
    open_until timestamptz,              -- null: closed
    why        text
);
create index sync_breaker_by_time on forebay.sync_breaker (sync, at);

-- Audits that ended.
create table forebay.sync_audit (
    audit_id bigint generated always as identity primary key,
    sync     text not null,
    ended_at timestamptz not null,
    seconds  double precision not null,
    compared text not null,              -- version or hash
    items    bigint not null,
    copies   bigint not null,
    rows     bigint not null,            -- read of both stores together
    ranges   bigint not null,            -- compared by their checksums
    differed bigint not null,            -- of these
    suspects bigint not null,
    missing  bigint not null,
    stale    bigint not null,
    orphaned bigint not null,
    ahead    bigint not null,
    repaired bigint not null default 0   -- jobs enqueued for what was found
);
create index sync_audit_by_time on forebay.sync_audit (sync, ended_at);

comment on table forebay.sync_count is 'What synchronisations did, by outcome, tag and priority; read it with forebay.sync_status().';


-- Append what a pass or a direct write counted.
--
-- Parameters: p_tally, {"sync", "counts": [[outcome, tag, priority, count], ..],
--   "breaker": {"place", "open_seconds": null for closed, "why"}, absent when there is nothing new}
--   p_who, the worker or the process.
create function forebay._note_tally(p_tally jsonb, p_who text) returns void
language plpgsql volatile
as $$
declare
    v_now  constant timestamptz := forebay._now();
    v_open constant jsonb := p_tally -> 'breaker';
begin
    insert into forebay.sync_count (sync, at, outcome, tag, priority, count)
    select left(p_tally ->> 'sync', 200), v_now, left(c.value ->> 0, 100), left(c.value ->> 1, 200), (c.value ->> 2)::integer, (c.value ->> 3)::bigint
    from jsonb_array_elements(p_tally -> 'counts') c;
    if v_open is not null then
        insert into forebay.sync_breaker (sync, at, who, place, open_until, why)
        values (left(p_tally ->> 'sync', 200), v_now, left(p_who, 200), v_open ->> 'place',
                v_now + make_interval(secs => (v_open ->> 'open_seconds')::double precision), left(v_open ->> 'why', 500));
    end if;
end
$$;


-- Append what direct writes counted, which belong to no settlement. Whoever may enqueue may tell of these, and of nothing that
-- only a settlement proves.
--
-- Parameters: p_tally, see forebay._note_tally; p_who, which process.
-- Errors: JQ001 a malformed tally, or one of something else. Locks: none.
create function forebay.note_direct(p_tally jsonb, p_who text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if (jsonb_typeof(p_tally -> 'sync') = 'string' and jsonb_typeof(p_tally -> 'counts') = 'array'
        and jsonb_array_length(p_tally -> 'counts') <= 1000 and p_who is not null
        and coalesce(p_tally -> 'breaker' ->> 'place', 'direct') = 'direct'
        and not exists (select from jsonb_array_elements(p_tally -> 'counts') c
                        where (c.value ->> 0 like 'direct.%' and (c.value ->> 3)::bigint >= 0) is not true)) is not true then
        raise exception using errcode = 'JQ001',
            message = 'a tally of direct writes needs a synchronisation, who counted, and counts named direct';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    perform forebay._note_tally(p_tally, p_who);
end
$$;


-- The jobs of a kind that have not ended, for one group of a queue, in one snapshot: waiting, claimed or to be done later.
--
-- Costs a visit to every one of them. due_at is when a job was due first, whatever became of it since.
--
-- Parameters: expires_seconds, how long after it was due a job of the kind expires.
-- Errors: none; no row when the queue is not known. Jobs parked behind an ordering key are not seen.
create function forebay.unfinished(
    kind text, queue text default 'default', group_name text default 'default', expires_seconds double precision default 2592000)
returns table (job_id bigint, state text, priority integer, tag text, attempt integer, enqueued_at timestamptz, due_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    v_mark     forebay.promotion;
    v_archived constant bigint := forebay._archived_below();
    v_now      constant timestamptz := forebay._now();
    v_expires  constant interval := make_interval(secs => least(unfinished.expires_seconds, 3e9));
begin
    select p.* into v_mark from forebay.promotion p order by p.no desc limit 1;
    return query
    with readers as materialized (
        select l.lane, l.priority, l.audience, g.group_id, g.start_after,
               b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
        from (select distinct i.lane, i.priority, i.audience from forebay.lane i where i.queue = unfinished.queue) l
        left join forebay.queue_group g on g.queue = unfinished.queue and g.name = unfinished.group_name
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        where l.audience = 0 or abs(l.audience) = g.group_id),
    found as (
        select coalesce(l.job_id, l.seq) as job_id, 'ready' as state, r.priority, l.tag, l.attempt, l.enqueued_at, l.expires_at, v_now as latest
        from readers r
        join lateral (select i.* from forebay.log i
                      where i.lane = r.lane and i.seq >= v_archived and i.kind = unfinished.kind
                        and i.xid >= pg_snapshot_xmin(coalesce(r.snap_from, '1:1:'))
                        and (r.snap_from is null or not forebay._is_consumed(
                                i.xid, i.seq, r.snap_from, r.snap_to, r.lo, r.hi, r.pos_xid, r.pos_seq))
                        and (r.snap_from is not null or r.audience <> 0 or r.start_after is null
                             or not pg_visible_in_snapshot(i.xid, r.start_after))) l on true
        union all
        select coalesce(l.job_id, l.seq), 'leased', r.priority, l.tag, l.attempt, l.enqueued_at, l.expires_at, v_now
        from forebay.lease e
        join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
        join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
        join readers r on r.group_id = b.group_id and r.lane = b.lane
        join lateral unnest(b.seqs) with ordinality u (seq, nr) on not exists (
            select from forebay.settlement s
            where s.lease_id = b.lease_id and s.claim_no = b.claim_no
              and (s.offsets is null or u.nr::smallint = any (s.offsets)))
        join lateral (select i.* from forebay._row(coalesce(b.lanes[u.nr], b.lane), coalesce(b.xids[u.nr], b.xids[1]), u.seq) i
                      where i.kind = unfinished.kind) l on true
        where e.closed_at is null
        union all
        select d.job_id, 'deferred', r.priority, d.tag, d.attempt, d.enqueued_at, d.expires_at,
               case when d.attempt is null and d.pauses is null then d.run_at else v_now end
        from readers r
        join forebay.deferred d on d.lane = r.lane and d.kind = unfinished.kind
        where not (v_mark.no is not null and pg_visible_in_snapshot(d.xid, v_mark.snap)
                   and (d.run_at, d.deferred_id) <= (v_mark.run_at, v_mark.deferred_id)))
    select o.job_id, o.state, o.priority, o.tag, coalesce(o.attempt, 0), o.enqueued_at,
           -- What expires tells when it was due; a job that is there is due no later than now, or than it is deferred to.
           greatest(o.enqueued_at, least(coalesce(o.expires_at, o.enqueued_at + interval '30 days') - v_expires, o.latest))
    from found o;
end
$$;


-- Is a job, by its tag and priority, one of the many that somebody asked for at once, and that alerts leave out?
create function forebay._is_bulk(p_tag text, p_priority integer, p_tags text[], p_least integer) returns boolean
language sql immutable
as $$
    select coalesce(p_priority >= p_least, false)
        or exists (select from unnest(p_tags) t (tag) where p_tag = t.tag or starts_with(p_tag, t.tag || '.'))
$$;


-- All that is known of a synchronisation, as JSON; what of it is an alert, `forebay sync status` says.
--
-- Counts every waiting job. The one that has waited longest but p most others says since when more than that many wait.
--
-- Parameters: queue and group_name of its jobs; expires_seconds, how long after they were due they expire; within_seconds, for
--   the rates; most, how many may wait; bulk_tags and bulk_priority, which jobs are left out of alerts: with one of these tags, or
--   one that goes on with a full stop, or with this priority or a higher number.
-- Errors: none; a name that nobody has used has nothing.
create function forebay.sync_status(
    name text, queue text default 'sync', group_name text default 'default', expires_seconds double precision default 2592000,
    within_seconds double precision default 600, most bigint default 10000,
    bulk_tags text[] default '{audit,backfill}', bulk_priority integer default 1000)
returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
    v_kind   constant text := 'sync.' || name;
    v_now    constant timestamptz := forebay._now();
    v_since  constant timestamptz := v_now - make_interval(secs => within_seconds);
    v_jobs   jsonb;
    v_counts jsonb;
    v_facts  jsonb;
begin
    with every as materialized (
        select u.* from forebay.unfinished(v_kind, sync_status.queue, sync_status.group_name, expires_seconds) u),
    origins as materialized (  -- Asked once for each, not for each job.
        select d.tag, d.priority, forebay._is_bulk(d.tag, d.priority, bulk_tags, bulk_priority) as is_bulk
        from (select distinct coalesce(e.tag, '') as tag, e.priority from every e) d),
    found as materialized (
        select e.*, o.is_bulk, e.due_at <= v_now as is_due
        from every e join origins o on o.tag = coalesce(e.tag, '') and o.priority = e.priority),
    sums as (
        select count(*) as waiting, count(*) filter (where f.is_due) as due_all,
               count(*) filter (where f.is_due and not f.is_bulk) as due, count(*) filter (where f.state = 'leased') as leased,
               count(*) filter (where f.attempt > 0) as tried, min(f.due_at) filter (where f.is_due and not f.is_bulk) as oldest
        from found f)
    select jsonb_build_object(
        'due', s.due, 'due_all', s.due_all, 'waiting', s.waiting, 'leased', s.leased, 'tried', s.tried, 'oldest_due_at', s.oldest,
        'above_since', case when s.due > most then (
            select f.due_at from found f where f.is_due and not f.is_bulk order by f.due_at offset most limit 1) end,
        'stuck', coalesce((
            select jsonb_agg(jsonb_build_object('job_id', o.job_id, 'tag', o.tag, 'attempts', o.attempt, 'due_at', o.due_at,
                                                'error', (select x.message from forebay.failure x
                                                          where x.job_id = o.job_id order by x.failed_at desc limit 1))
                             order by o.due_at, o.job_id)
            from (select * from found f where f.attempt > 0 and not f.is_bulk order by f.due_at, f.job_id limit 5) o), '[]'),
        'by', coalesce((
            select jsonb_agg(jsonb_build_object('tag', o.tag, 'priority', o.priority, 'is_bulk', o.is_bulk, 'due', o.due,
                                                'later', o.later, 'tried', o.tried, 'oldest_due_at', o.oldest)
                             order by o.priority, o.tag nulls first)
            from (select f.tag, f.priority, f.is_bulk, count(*) filter (where f.is_due) as due,
                         count(*) filter (where not f.is_due) as later, count(*) filter (where f.attempt > 0) as tried,
                         min(f.due_at) filter (where f.is_due) as oldest
                  from found f group by f.tag, f.priority, f.is_bulk) o), '[]'))
    into v_jobs from sums s;

    with summed as materialized (
        select c.outcome, c.tag, c.priority, sum(c.count) as total,
               coalesce(sum(c.count) filter (where c.at > v_since), 0) as lately,
               max(c.at) filter (where isfinite(c.at)) as last_at
        from forebay.sync_count c where c.sync = name
        group by c.outcome, c.tag, c.priority)
    select jsonb_build_object(
        'counts', coalesce(jsonb_agg(jsonb_build_object('outcome', s.outcome, 'tag', s.tag, 'priority', s.priority,
                                                        'lately', s.lately, 'total', s.total)
                                     order by s.outcome, s.priority, s.tag nulls first), '[]'),
        'completed', coalesce(sum(s.lately) filter (where s.outcome like 'completed.%'
                                                      and not forebay._is_bulk(s.tag, s.priority, bulk_tags, bulk_priority)), 0),
        'completed_at', max(s.last_at) filter (where s.outcome like 'completed.%'
                                                 and not forebay._is_bulk(s.tag, s.priority, bulk_tags, bulk_priority)))
    into v_counts
    from summed s;

    select jsonb_build_object(
        'at', v_now,
        'expired', (select count(*) from forebay.dead_letter d
                    where d.queue = sync_status.queue and d.kind = v_kind and d.reason = 'expired' and d.redriven_at is null),
        'dead', (select count(*) from forebay.dead_letter d
                 where d.queue = sync_status.queue and d.kind = v_kind and d.reason <> 'expired' and d.redriven_at is null),
        'paused_at', (select g.paused_at from forebay.queue_group g
                      where g.queue = sync_status.queue and g.name = sync_status.group_name),
        'breakers', coalesce((
            select jsonb_agg(jsonb_build_object('who', o.who, 'place', o.place, 'open_until', o.open_until, 'why', o.why)
                             order by o.place desc, o.who)
            from (select distinct on (b.who, b.place) b.* from forebay.sync_breaker b
                  where b.sync = name and b.at > v_now - interval '1 hour' order by b.who, b.place, b.at desc) o
            -- One that lives is tried at least every minute, and tells how that went.
            where o.open_until > v_now - interval '3 minutes'), '[]'),
        'samples', coalesce((
            select jsonb_agg(jsonb_build_array(o.at, o.due) order by o.at)
            from (select s.at, s.due from forebay.sync_sample s where s.sync = name order by s.at desc limit 200) o), '[]'),
        'audits', forebay.sync_audits(name, 5))
    into v_facts;
    return v_facts || v_jobs || v_counts;
end
$$;


-- The newest audits of a synchronisation, newest first, as a JSON array.
create function forebay.sync_audits(name text, most integer default 100) returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(to_jsonb(o) order by o.audit_id desc), '[]')
    from (select a.* from forebay.sync_audit a where a.sync = sync_audits.name order by a.ended_at desc, a.audit_id desc limit most) o
$$;


-- Take a sample of how many jobs of a synchronisation are due, unless there is one of the last 50 seconds; returns whether.
--
-- Parameters: as of forebay.sync_status.
-- Locks: the maintenance key 21, tried only: somebody else is at it.
create function forebay.sample_sync(
    p_name text, p_queue text, p_group_name text, p_expires_seconds double precision, p_bulk_tags text[], p_bulk_priority integer)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    v_now constant timestamptz := forebay._now();
begin
    if exists (select from forebay.sync_sample s where s.sync = p_name and s.at > v_now - interval '50 seconds')
       or not pg_try_advisory_xact_lock(forebay._lock_class(), 21) then
        return false;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.sync_sample (sync, at, due, due_all, waiting)
    select p_name, v_now,
           coalesce(sum(o.due) filter (where not forebay._is_bulk(o.tag, o.priority, p_bulk_tags, p_bulk_priority)), 0),
           coalesce(sum(o.due), 0), coalesce(sum(o.waiting), 0)
    from (select u.tag, u.priority, count(*) as waiting, count(*) filter (where u.due_at <= v_now) as due
          from forebay.unfinished('sync.' || p_name, p_queue, p_group_name, p_expires_seconds) u
          group by u.tag, u.priority) o;
    return true;
end
$$;


-- Keep what an audit found; returns its number.
--
-- Parameters: p_found, an object with the columns of forebay.sync_audit.
create function forebay.note_audit(p_name text, p_found jsonb) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    insert into forebay.sync_audit (sync, ended_at, seconds, compared, items, copies, rows, ranges, differed, suspects,
                                    missing, stale, orphaned, ahead)
    select p_name, forebay._now(), f.seconds, f.compared, f.items, f.copies, f.rows, f.ranges, f.differed, f.suspects,
           f.missing, f.stale, f.orphaned, f.ahead
    from jsonb_populate_record(null::forebay.sync_audit, p_found) f
    returning audit_id into v_id;
    return v_id;
end
$$;


-- Note how many jobs were enqueued to repair what an audit had found.
create function forebay.note_repair(p_audit_id bigint, p_jobs bigint) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    update forebay.sync_audit a set repaired = a.repaired + p_jobs where a.audit_id = p_audit_id
$$;


-- Fold counts, and delete samples, notes of breakers and audits that are old; returns how many rows went.
--
-- Invariant: the sum of a synchronisation's counts stays what it was.
create function forebay._trim_syncs() returns bigint
language plpgsql volatile
as $$
declare
    v_now  constant timestamptz := forebay._now();
    v_days constant interval := make_interval(days => forebay._setting_value('retention_days')::integer);
    v_rows bigint;
    v_all  bigint := 0;
begin
    with gone as (
        delete from forebay.sync_count c
        where c.level = 0 and c.at < date_trunc('minute', v_now - interval '10 minutes') returning c.*),
    kept as (
        insert into forebay.sync_count (sync, at, level, outcome, tag, priority, count)
        select g.sync, date_trunc('minute', g.at), 1, g.outcome, g.tag, g.priority, sum(g.count) from gone g group by 1, 2, 4, 5, 6)
    select count(*) into v_rows from gone;
    v_all := v_all + v_rows;
    with gone as (
        delete from forebay.sync_count c
        where c.level = 1 and c.at < date_trunc('hour', v_now - interval '1 day') returning c.*),
    kept as (
        insert into forebay.sync_count (sync, at, level, outcome, tag, priority, count)
        select g.sync, date_trunc('hour', g.at), 2, g.outcome, g.tag, g.priority, sum(g.count) from gone g group by 1, 2, 4, 5, 6)
    select count(*) into v_rows from gone;
    v_all := v_all + v_rows;
    if exists (select from forebay.sync_count c where c.level = 2 and c.at < v_now - v_days) then
        with gone as (
            delete from forebay.sync_count c
            where c.level = 3 or (c.level = 2 and c.at < v_now - v_days) returning c.*),
        kept as (
            insert into forebay.sync_count (sync, at, level, outcome, tag, priority, count)
            select g.sync, '-infinity', 3, g.outcome, g.tag, g.priority, sum(g.count) from gone g group by 1, 4, 5, 6)
        select count(*) into v_rows from gone;
        v_all := v_all + v_rows;
    end if;
    delete from forebay.sync_sample s where s.at < v_now - interval '2 days';
    get diagnostics v_rows = row_count;
    v_all := v_all + v_rows;
    delete from forebay.sync_breaker b where b.at < v_now - interval '2 days';
    get diagnostics v_rows = row_count;
    v_all := v_all + v_rows;
    delete from forebay.sync_audit a where a.ended_at < v_now - greatest(interval '365 days', v_days);
    get diagnostics v_rows = row_count;
    return v_all + v_rows;
end
$$;


select forebay._grant();
