-- Check declared queues, and return each setting in the form in which it is compared. A rate and its burst are one setting: neither
-- means anything without the other, so they change, are kept and are removed together.
--
-- Errors: JQ001.
create function forebay._declared_settings(p_queues jsonb, out no bigint, out queue text, out setting text, out value jsonb)
returns setof record
language plpgsql stable
set extra_float_digits = 1
as $$
declare
    v_name    constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_problem text;
begin
    v_problem := case when jsonb_typeof(p_queues) is distinct from 'array' then 'queues is not a JSON array' else coalesce(
        (select format('queue %s is not a name: letters, digits and _ . : - only, at most 128', left(i.item ->> 'queue', 40))
         from jsonb_array_elements(p_queues) i (item)
         where (jsonb_typeof(i.item) = 'object' and i.item ->> 'queue' ~ v_name) is not true limit 1),
        (select format('queue %s is declared twice', i.item ->> 'queue')
         from jsonb_array_elements(p_queues) i (item) group by i.item ->> 'queue' having count(*) > 1 limit 1)) end;
    if v_problem is null then
        select format('queue %s: %s', i.item ->> 'queue', p.problem) into v_problem
        from jsonb_array_elements(p_queues) i (item)
        cross join jsonb_each(i.item - 'queue') s (name, value)
        left join (values ('max_waiting', 1, 9223372036854775807, true), ('rate', 0.000001, 1000000, false), ('burst', 1, 1000000, true),
                          ('concurrency', 1, 1000000, true), ('key_rate', 0.000001, 1000000, false), ('key_burst', 1, 1000000, true),
                          ('key_concurrency', 1, 1000000, true), ('shards', 1, 64, true), ('dead_keep_days', 1, 36500, true))
               b (name, low, high, is_whole) on b.name = s.name
        cross join lateral (values (case
            when s.value = 'null' then null
            when s.name = 'groups' then
                case when jsonb_typeof(s.value) <> 'array' then 'groups is not an array of names'
                     else (select format('group %s is not a name, or is named twice', left(g.name, 40))
                           from jsonb_array_elements_text(s.value) g (name)
                           group by g.name having count(*) > 1 or (g.name ~ v_name) is not true limit 1) end
            when s.name = 'max_waiting_group' then
                case when (jsonb_typeof(s.value) = 'string' and s.value #>> '{}' ~ v_name) is not true
                          then format('max_waiting_group %s is not a name', left(s.value::text, 40))
                     when coalesce(i.item -> 'max_waiting', 'null') = 'null' then 'max_waiting_group is given without max_waiting' end
            when s.name = 'notices' then case when jsonb_typeof(s.value) <> 'boolean' then format('notices is %s, not true or false', left(s.value::text, 40)) end
            when b.name is null then format('%s is not a setting', left(s.name, 40))
            when s.name = 'dead_keep_days' and s.value = '"forever"' then null
            when jsonb_typeof(s.value) <> 'number' then format('%s is %s, not a number', s.name, left(s.value::text, 40))
            when s.value::numeric not between b.low and b.high or (b.is_whole and s.value::numeric <> trunc(s.value::numeric))
                then format('%s is %s, not %s %s to %s', s.name, left(s.value::text, 40),
                            case when b.is_whole then 'an integer of' else 'within' end, b.low, b.high)
            when s.name in ('burst', 'key_burst') and coalesce(i.item -> replace(s.name, 'burst', 'rate'), 'null') = 'null'
                then format('%s is given without %s', s.name, replace(s.name, 'burst', 'rate')) end)) p (problem)
        where p.problem is not null limit 1;
    end if;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was changed. See the function forebay.apply_queues in the reference.';
    end if;
    return query
    select row_number() over (order by i.item ->> 'queue', v.no, v.part), i.item ->> 'queue', v.setting, v.value
    from jsonb_array_elements(p_queues) i (item)
    cross join lateral (
        select s.no, 0::bigint, s.setting, nullif(s.value, 'null') from (values
            (1, 'max_waiting', forebay._waiting_setting((i.item ->> 'max_waiting')::numeric::bigint, i.item ->> 'max_waiting_group')),
            (2, 'rate', forebay._rate_setting((i.item ->> 'rate')::double precision, (i.item ->> 'burst')::numeric::integer)),
            (3, 'concurrency', to_jsonb((i.item ->> 'concurrency')::numeric::integer)),
            (4, 'key_rate', forebay._rate_setting((i.item ->> 'key_rate')::double precision, (i.item ->> 'key_burst')::numeric::integer)),
            (5, 'key_concurrency', to_jsonb((i.item ->> 'key_concurrency')::numeric::integer)),
            (6, 'shards', to_jsonb((i.item ->> 'shards')::numeric::integer)),
            (7, 'dead_keep_days', case when i.item ->> 'dead_keep_days' = 'forever' then '"forever"'
                                       else to_jsonb((i.item ->> 'dead_keep_days')::numeric::integer) end),
            (8, 'notices', to_jsonb((i.item ->> 'notices')::boolean))) s (no, setting, value)
        union all
        select 9, g.no, 'group ' || g.name, '"open"'
        from jsonb_array_elements_text(nullif(i.item -> 'groups', 'null')) with ordinality g (name, no)) v (no, part, setting, value)
    where v.value is not null;
end
$$;


create function forebay._rate_setting(p_rate double precision, p_burst integer) returns jsonb
language sql immutable
as $$ select case when p_rate is not null then jsonb_strip_nulls(jsonb_build_object('rate', p_rate, 'burst', p_burst)) end $$;


-- A number, or for another group than default an object with the name of the group.
create function forebay._waiting_setting(p_max_waiting bigint, p_group text) returns jsonb
language sql immutable
as $$
    select case when nullif(p_group, 'default') is null then to_jsonb(p_max_waiting)
                else jsonb_build_object('max_waiting', p_max_waiting, 'max_waiting_group', p_group) end
$$;


-- The settings that a queue has in the database, in the same form, without those that have their default.
create function forebay._queue_settings(p_queue text, out setting text, out value jsonb) returns setof record
language sql stable
set extra_float_digits = 1
as $$
    select s.setting, s.value
    from forebay.queue_limits l
    cross join lateral (values
        ('max_waiting', forebay._waiting_setting(l.max_waiting, l.max_waiting_group)), ('rate', forebay._rate_setting(l.rate, l.burst)), ('concurrency', to_jsonb(l.concurrency)),
        ('key_rate', forebay._rate_setting(l.key_rate, l.key_burst)), ('key_concurrency', to_jsonb(l.key_concurrency))) s (setting, value)
    where l.queue = p_queue and s.value is not null
    union all
    select 'shards', to_jsonb(h.lanes) from forebay.queue_shards h where h.queue = p_queue and h.lanes > 1
    union all
    select 'notices', 'true' from forebay.queue_notices n where n.queue = p_queue
    union all
    select 'dead_keep_days', coalesce(to_jsonb(r.days), '"forever"') from forebay.dead_retention r where r.queue = p_queue
    union all
    select 'group ' || g.name, '"open"' from forebay.queue_group g where g.queue = p_queue and not g.is_implied and g.closing_at is null
$$;


-- Compare code, database and what was applied last, for each setting that is declared or that p_app applied; ordered as declared.
--
-- action: set, change, remove: what applying does. kept: changed by hand, the code did not change. conflict: set by hand, and the code
-- has another value than the one applied last, or another application applied the setting. forget: no longer declared, but it was
-- changed by hand, or is a group, which is never closed; it stays. record: nothing differs, but that is not recorded yet.
create function forebay._compare_queues(p_app text, p_queues jsonb, p_overwrite boolean) returns setof forebay._queue_difference
language sql stable
-- planner: indexed
as $$
    select c.queue, c.setting, c.value, c.code, c.applied, c.app, c.applied_at, c.action, e.changed_by, e.at
    from (
        select w.*, a.value, case
            when w.code is null and a.value is not distinct from w.initial then 'record'
            when w.code is null and w.setting not like 'group %' and a.value = w.applied then 'remove'
            when w.code is null then 'forget'
            when a.value = w.code and (w.applied = w.code or w.app <> p_app) then null
            when a.value = w.code then 'record'
            when w.applied is null and a.value is not distinct from w.initial then 'set'
            when w.app = p_app and a.value = w.applied or p_overwrite
                then case when a.value is not distinct from w.initial then 'set' else 'change' end
            when w.app = p_app and w.applied = w.code then 'kept'
            else 'conflict' end as action
        from (
            select d.no, coalesce(d.queue, l.queue) as queue, coalesce(d.setting, l.setting) as setting,
                   d.value as code, l.value as applied, l.app, l.applied_at,
                   case coalesce(d.setting, l.setting) when 'shards' then '1'::jsonb when 'notices' then 'false' end as initial
            from forebay._declared_settings(p_queues) d
            full join forebay.applied_setting l on l.queue = d.queue and l.setting = d.setting
            where d.queue is not null or l.app = p_app) w
        left join lateral (
            select coalesce((select s.value from forebay._queue_settings(w.queue) s where s.setting = w.setting), w.initial)) a (value) on true) c
    left join lateral (
        select coalesce(i.actor, i.role), i.at from forebay.event i
        where c.action in ('kept', 'conflict', 'forget') and i.queue = c.queue and case
            when c.setting = 'shards' then i.act = 'queues.shard'
            when c.setting = 'dead_keep_days' then i.act = 'dead.keep'
            when c.setting = 'notices' then i.act = 'queues.notices'
            when c.setting like 'group %' then i.act in ('groups.open', 'groups.close') and i.group_name = substr(c.setting, 7)
            else i.act = 'queues.limit' and (i.old -> c.setting is distinct from i.new -> c.setting
                 or i.old -> (c.setting || '_group') is distinct from i.new -> (c.setting || '_group')
                 or i.old -> replace(c.setting, 'rate', 'burst') is distinct from i.new -> replace(c.setting, 'rate', 'burst')) end
        order by i.at desc, i.event_id desc limit 1) e (changed_by, at) on true
    where c.action is not null
    order by c.queue, c.no nulls last, c.setting
$$;
