-- grant: operator, reader

-- All settings that hold for a queue, with where each comes from and who has set it. No jobs are
-- counted.
--
-- Columns:
--   part        `waiting`, `starts`, `retries`, `retention`, `notices`, `groups`, `keys`, `alerts` or
--               `kinds`
--   setting     its name; a group, a threshold (with the tag after a colon) or a kind by name
--   value       the value that holds; null: none. Of a group: an object with `paused_at`,
--               `resume_at`, `closing_at` and `is_implied`, without nulls. Of `paused_keys` and
--               `limited_keys`: how many. Of a kind: which arguments make keys
--   source      `queue`, `all queues`, `database` or `built in`
--   set_by      who set it last, as the event log has it; null: not known, or not set
--   set_at      when
--   applied_by  the application that declares it
--
-- Errors: JQ001 a bad name.
-- Transaction: the caller's; reads only.
-- See: docs/howto/manage-queues.md#all-settings-of-a-queue
create function forebay.queue_settings(queue text)
returns table (part text, setting text, value jsonb, source text, set_by text, set_at timestamptz, applied_by text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_queue constant text := queue_settings.queue;
begin
    if (v_queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true then
        raise exception using errcode = 'JQ001', column = 'queue',
            message = format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(v_queue, 40)), 'null')),
            hint = 'Name one queue.';
    end if;
    return query
    select s.part, s.setting, nullif(s.value, 'null'), s.source,
           case when s.source = 'queue' then e.set_by when s.source in ('database', 'all queues') then coalesce(d.actor, d.role, e.set_by) end,
           case when s.source = 'queue' then e.at when s.source in ('database', 'all queues') then coalesce(d.set_at, e.at) end,
           case when s.source = 'queue' then a.app end
    from forebay._settings_of_queue(v_queue) s
    left join forebay.setting d on d.name = s.setting and s.source = 'database'
    left join forebay.applied_setting a on a.queue = v_queue and a.setting = case s.part when 'groups' then 'group ' || s.setting else s.setting end
    left join lateral (
        select coalesce(i.actor, i.role) as set_by, i.at from forebay.event i
        where i.queue = case when s.source = 'queue' then v_queue end and i.act = s.act
          and case when s.act = 'queues.limit' then i.old -> s.setting is distinct from i.new -> s.setting
                   when s.act = 'groups.open' then i.group_name = s.setting when s.act = 'alerts.set' then i.detail = split_part(s.setting, ':', 1) else true end
        order by i.at desc, i.event_id desc limit 1) e on true
    order by s.nr, s.setting;
end
$$;


-- The settings of a queue; act: the events that change one.
create function forebay._settings_of_queue(p_queue text)
returns table (nr integer, part text, setting text, value jsonb, source text, act text)
language sql stable
as $$
    with own as (
        select max(l.max_waiting) as max_waiting, max(l.max_waiting_group) as max_waiting_group, max(l.rate) as rate, max(l.burst) as burst,
               max(l.concurrency) as concurrency, max(l.key_rate) as key_rate, max(l.key_burst) as key_burst, max(l.key_concurrency) as key_concurrency
        from forebay.queue_limits l where l.queue = p_queue
    ), base as (
        select s.name, s.value, case when s.set_at is null then 'built in' else 'database' end as source from forebay.setting s
    )
    select 1, 'waiting', 'max_waiting',
           case when o.max_waiting is null and not starts_with(p_queue, 'forebay.') then b.value else to_jsonb(o.max_waiting) end,
           case when o.max_waiting is not null then 'queue' when starts_with(p_queue, 'forebay.') then 'built in' else b.source end, 'queues.limit'
    from own o, base b where b.name = 'max_waiting'
    union all
    select 2, 'waiting', 'max_waiting_group', to_jsonb(coalesce(o.max_waiting_group, 'default')),
           case when o.max_waiting_group is null then 'built in' else 'queue' end, 'queues.limit' from own o
    union all
    select v.nr, 'starts', v.name, v.value, case when v.value is null then 'built in' else 'queue' end, 'queues.limit'
    from own o cross join lateral (values
        (10, 'rate', to_jsonb(o.rate)), (11, 'burst', to_jsonb(o.burst)), (12, 'concurrency', to_jsonb(o.concurrency)), (13, 'key_rate', to_jsonb(o.key_rate)),
        (14, 'key_burst', to_jsonb(o.key_burst)), (15, 'key_concurrency', to_jsonb(o.key_concurrency))) v (nr, name, value)
    union all
    select 16, 'starts', 'shards', to_jsonb(coalesce(max(h.lanes), 1)), case when max(h.lanes) > 1 then 'queue' else 'built in' end, 'queues.shard'
    from forebay.queue_shards h where h.queue = p_queue
    union all
    select case b.name when 'max_attempts' then 20 else 21 end, 'retries', b.name,
           case when b.name = 'max_attempts' then coalesce(to_jsonb(forebay._queue_attempts(p_queue)), b.value) else b.value end,
           case when b.name = 'max_attempts' and forebay._queue_attempts(p_queue) is not null then 'queue' else b.source end, 'queues.max_attempts'
    from base b where b.name in ('max_attempts', 'retry_strategy', 'retry_base_seconds', 'retry_cap_seconds', 'retry_jitter')
    union all
    select 30, 'retention', 'dead_keep_days', to_jsonb(forebay._days_of_dead(p_queue)),
           case when exists (select from forebay.dead_retention r where r.queue = p_queue) then 'queue'
                when exists (select from forebay.dead_retention r where r.queue = '') then 'all queues' else 'built in' end, 'dead.keep'
    union all
    select 31, 'retention', b.name, b.value, b.source, null from base b where b.name in ('retention_days', 'retention_bytes')
    union all
    select 35, 'notices', 'notices', to_jsonb(count(*) > 0), case when count(*) > 0 then 'queue' else 'built in' end, 'queues.notices'
    from forebay.queue_notices n where n.queue = p_queue
    union all
    select 40, 'groups', g.name, jsonb_strip_nulls(jsonb_build_object(
               'paused_at', forebay._paused_since(g.paused_at, g.resume_at),
               'resume_at', case when forebay._paused_since(g.paused_at, g.resume_at) is not null then g.resume_at end,
               'closing_at', g.closing_at, 'is_implied', nullif(g.is_implied, false))), 'queue',
           case when forebay._paused_since(g.paused_at, g.resume_at) is null then 'groups.open' else 'queues.pause' end
    from forebay.queue_group g where g.queue = p_queue
    union all
    select 50, 'keys', k.name, to_jsonb(k.keys), 'queue', k.act
    from (select 'paused_keys' as name, 'keys.pause' as act, count(*) as keys from forebay.key_pause p
          where p.queue = p_queue and coalesce(p.resume_at > forebay._now(), true)
          union all
          select 'limited_keys', 'keys.limit', count(*) from forebay.key_limits l
          where l.queue = p_queue and num_nonnulls(l.rate, l.burst, l.concurrency) > 0) k
    where k.keys > 0
    union all
    select distinct on (t.name, t.tag) 60, 'alerts', t.name || case when t.tag <> '' then ':' || t.tag else '' end, to_jsonb(t.value),
           case when t.queue = p_queue then 'queue' else 'all queues' end, 'alerts.set'
    from (select i.* from forebay.alert_threshold i where i.queue in (p_queue, '') order by i.name, i.tag, i.queue desc) t
    union all
    select 70, 'kinds', k.kind, k.keys, 'queue', null from forebay.kind_queue k where k.queue = p_queue
$$;
