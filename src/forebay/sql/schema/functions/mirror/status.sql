-- grant: worker, operator, reader

-- The state of a mirror: the attributes of `forebay.mirror.MirrorFacts` as a JSON object. `forebay
-- mirror status` decides which of it is an alert. Visits every waiting job of the mirror. For an
-- unused name the object has no facts.
--
-- Parameters:
--   queue, group_name         of its jobs
--   expires_seconds           how long after they were due they expire
--   within_seconds            the time to which rates refer
--   most                      how many jobs may be due; `above_since` is the time since which there
--                             were more
--   bulk_tags, bulk_priority  which jobs are left out of `due`, `oldest_due_at`, `above_since`,
--                             `stuck`, `completed` and `completed_at`: those with one of the tags,
--                             with a tag that begins with one of them and a full stop, or with this
--                             priority or a higher number
--
-- Errors: JQ001 a bad `expires_seconds`, `within_seconds` or `most`.
-- See: docs/howto/reconcile.md#watch-it
create function forebay.mirror_status(
    name text, queue text default 'mirror', group_name text default 'default', expires_seconds double precision default 2592000,
    within_seconds double precision default 600, most bigint default 10000,
    bulk_tags text[] default '{audit,backfill}', bulk_priority integer default 1000)
returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
#variable_conflict use_column
declare
    v_kind   constant text := 'mirror.' || name;
    v_now    constant timestamptz := forebay._now();
    v_since  constant timestamptz := v_now - make_interval(secs => case when within_seconds between 0 and 3e9 then within_seconds end);
    v_jobs   jsonb;
    v_counts jsonb;
    v_facts  jsonb;
begin
    perform forebay._require('within_seconds', within_seconds between 0 and 3e9, within_seconds::text, 'a number of seconds of at most a hundred years'),
            forebay._require('most', most >= 0, most::text, '0 or more');
    with every as materialized (
        select u.* from forebay.unfinished(v_kind, mirror_status.queue, mirror_status.group_name, expires_seconds) u),
    origins as materialized (  -- Read once for each, not for each job.
        select d.tag, d.priority, forebay._is_bulk(d.tag, d.priority, bulk_tags, bulk_priority) as is_bulk
        from (select distinct coalesce(e.tag, '') as tag, e.priority from every e) d),
    found as materialized (
        select e.*, o.is_bulk, e.due_at <= v_now as is_due
        from every e join origins o on o.tag = coalesce(e.tag, '') and o.priority = e.priority),
    sums as (
        select count(*) as waiting, count(*) filter (where f.is_due) as due_all,
               count(*) filter (where f.is_due and not f.is_bulk) as due, count(*) filter (where f.state = 'claimed') as claimed,
               count(*) filter (where f.state = 'running') as running,
               count(*) filter (where f.attempt > 1) as tried, min(f.due_at) filter (where f.is_due and not f.is_bulk) as oldest
        from found f)
    select jsonb_build_object(
        'due', s.due, 'due_all', s.due_all, 'waiting', s.waiting, 'claimed', s.claimed, 'running', s.running, 'tried', s.tried, 'oldest_due_at', s.oldest,
        'above_since', case when s.due > most then (
            select f.due_at from found f where f.is_due and not f.is_bulk order by f.due_at offset most limit 1) end,
        'stuck', coalesce((
            select jsonb_agg(jsonb_build_object('job_id', o.job_id, 'tag', o.tag, 'attempts', o.attempt - 1, 'due_at', o.due_at,
                                                'error', (select x.message from forebay.failure x
                                                          where x.job_id = o.job_id order by x.failed_at desc limit 1))
                             order by o.due_at, o.job_id)
            from (select * from found f where f.attempt > 1 and not f.is_bulk order by f.due_at, f.job_id limit 5) o), '[]'),
        'by', coalesce((
            select jsonb_agg(jsonb_build_object('tag', o.tag, 'priority', o.priority, 'is_bulk', o.is_bulk, 'due', o.due,
                                                'later', o.later, 'tried', o.tried, 'oldest_due_at', o.oldest)
                             order by o.priority, o.tag nulls first)
            from (select f.tag, f.priority, f.is_bulk, count(*) filter (where f.is_due) as due,
                         count(*) filter (where not f.is_due) as later, count(*) filter (where f.attempt > 1) as tried,
                         min(f.due_at) filter (where f.is_due) as oldest
                  from found f group by f.tag, f.priority, f.is_bulk) o), '[]'))
    into v_jobs from sums s;

    with summed as materialized (
        select c.outcome, c.tag, c.priority, sum(c.count) as total,
               coalesce(sum(c.count) filter (where c.at > v_since), 0) as lately,
               max(c.at) filter (where isfinite(c.at)) as last_at
        from forebay.mirror_count c where c.mirror = name and c.outcome <> 'direct.slow'  -- counted as another one, too
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
                    where d.queue = mirror_status.queue and d.kind = v_kind and d.reason = 'expired' and d.redriven_at is null),
        'dead', (select count(*) from forebay.dead_letter d
                 where d.queue = mirror_status.queue and d.kind = v_kind and d.reason <> 'expired' and d.redriven_at is null),
        'paused_at', (select forebay._paused_since(g.paused_at, g.resume_at) from forebay.queue_group g
                      where g.queue = mirror_status.queue and g.name = mirror_status.group_name),
        'breakers', coalesce((
            select jsonb_agg(jsonb_build_object('who', o.who, 'place', o.place, 'open_until', o.open_until, 'why', o.why)
                             order by o.place desc, o.who)
            from (select distinct on (b.who, b.place) b.* from forebay.mirror_breaker b
                  where b.mirror = name and b.at > v_now - interval '1 hour' order by b.who, b.place, b.at desc) o
            -- A live breaker is tried at least every minute, and records the result.
            where o.open_until > v_now - interval '3 minutes'), '[]'),
        'samples', coalesce((
            select jsonb_agg(jsonb_build_array(o.at, o.due) order by o.at)
            from (select s.at, s.due from forebay.mirror_sample s where s.mirror = name order by s.at desc limit 200) o), '[]'),
        'audits', forebay.mirror_audits(name, 5))
    into v_facts;
    return v_facts || v_jobs || v_counts;
end
$$;
