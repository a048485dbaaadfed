-- grant: operator

-- Make the settings of queues what an application declares, except those that were changed by hand.
-- `forebay apply` calls it. Returns a row for each difference that there was. Each change is an
-- event whose actor begins with `apply`. Calls wait for each other, also for those of
-- forebay.limit_queue(), so each compares with what the last one left.
--
-- Parameters:
--   app        the name of the application, 1 to 200 characters. Settings that it applied and no
--              longer declares are removed, those of other applications are not
--   queues     a JSON array of all queues that it declares, each an object: `queue`, its name;
--              limits as in forebay.limit_queue(); `shards`; `dead_keep_days`, a number or
--              `"forever"`; `notices`, true or false; `groups`, an array of names. If no group of a queue was opened before,
--              all of them start at the beginning
--   overwrite  take the declared value also for what is `kept` or a `conflict`
--
-- Columns:
--   database                what the database had; null: the default
--   code                    what is declared; null: it is not declared any more
--   applied, applied_by, applied_at
--                           what was applied last, by which application and when
--   changed_by, changed_at  who last changed a setting that is not written, and when, by the event
--                           log
--
-- Actions:
--   set, change, remove  done. A setting is removed if it is no longer declared and has the value
--                        that was applied
--   kept                 changed by hand since it was applied; the code did not change
--   conflict             changed by hand, and the code has another value too; or set by hand before
--                        it was first declared; or applied by another application. The value stays
--   forget               no longer declared. It stays because it was changed by hand, or is a
--                        group: groups are never closed
--
-- Errors: JQ001 a declaration is refused, JQ017 a declared group is being closed; nothing is
--   changed then.
-- Locks: the settings lock; the tables of limits, shards, retention of dead letters, notices and applied settings, until the
--   transaction ends; only calls that change these wait. To open a group, as forebay.open_group().
-- See: docs/howto/declare-queues.md, docs/howto/event-log.md
create function forebay.apply_queues(
    app text, queues jsonb, overwrite boolean default false)
returns table (queue text, setting text, database jsonb, code jsonb, applied jsonb, applied_by text,
               applied_at timestamptz, action text, changed_by text, changed_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_all   forebay._queue_difference[];
    v_row   record;
    v_start text;
    v_queue text;
    v_actor constant text := current_setting('forebay.actor', true);
begin
    if (length(apply_queues.app) between 1 and 200 and apply_queues.app !~ E'[{control}]') is not true then
        raise exception using errcode = 'JQ001',
            message = format('app %s is not a name of 1 to 200 characters', coalesce(quote_literal(left(apply_queues.app, 40)), 'null'));
    end if;
    perform forebay._lock_settings();
    -- What is compared must not change before it is replaced.
    lock table forebay.applied_setting, forebay.queue_limits, forebay.queue_shards, forebay.dead_retention, forebay.queue_notices in share row exclusive mode;
    v_all := array(select d from forebay._compare_queues(apply_queues.app, apply_queues.queues, coalesce(apply_queues.overwrite, false)) d);

    perform set_config('forebay.actor', concat_ws(' by ', 'apply ' || apply_queues.app, nullif(v_actor, '')), true);
    for v_row in
        select d.queue, jsonb_object_agg(d.setting, d.code) as v, array_agg(d.setting) as names
        from unnest(v_all) d
        where d.action in ('set', 'change', 'remove') and d.setting in ('max_waiting', 'rate', 'concurrency', 'key_rate', 'key_concurrency')
        group by d.queue order by d.queue
    loop
        perform forebay.limit_queue(
            v_row.queue, max_waiting => coalesce(v_row.v #>> '{max_waiting,max_waiting}', v_row.v ->> 'max_waiting')::bigint,
            max_waiting_group => case when v_row.v -> 'max_waiting' <> 'null' then coalesce(v_row.v #>> '{max_waiting,max_waiting_group}', 'default') end,
            rate => (v_row.v #>> '{rate,rate}')::double precision, burst => (v_row.v #>> '{rate,burst}')::integer,
            concurrency => (v_row.v ->> 'concurrency')::integer,
            key_rate => (v_row.v #>> '{key_rate,rate}')::double precision, key_burst => (v_row.v #>> '{key_rate,burst}')::integer,
            key_concurrency => (v_row.v ->> 'key_concurrency')::integer, remove => v_row.names);
    end loop;

    for v_row in
        select d.* from unnest(v_all) with ordinality d
        where d.action in ('set', 'change', 'remove') and (d.setting in ('shards', 'dead_keep_days', 'notices') or d.setting like 'group %')
        order by d.ordinality
    loop
        if v_row.setting = 'shards' then
            perform forebay.shard_queue(v_row.queue, coalesce(v_row.code::integer, 1));
        elsif v_row.setting = 'notices' then
            perform forebay.set_notices(v_row.queue, coalesce(v_row.code::boolean, false));
        elsif v_row.setting = 'dead_keep_days' then
            perform forebay.keep_dead(v_row.queue, case when jsonb_typeof(v_row.code) = 'number' then v_row.code::integer end, v_row.code is null);
        else
            if v_queue is distinct from v_row.queue then
                v_queue := v_row.queue;
                v_start := case when not exists (select from forebay.queue_group g where g.queue = v_queue and not g.is_implied) then 'beginning' end;
            end if;
            perform forebay.open_group(v_row.queue, substr(v_row.setting, 7), v_start);
        end if;
    end loop;

    perform set_config('forebay.actor', coalesce(v_actor, ''), true);
    delete from forebay.applied_setting a using unnest(v_all) d
    where a.queue = d.queue and a.setting = d.setting and d.code is null;
    insert into forebay.applied_setting (queue, setting, value, app, applied_at)
    select d.queue, d.setting, d.code, apply_queues.app, forebay._now() from unnest(v_all) d
    where d.code is not null and d.action in ('set', 'change', 'record')
    on conflict on constraint applied_setting_pkey do update
    set value = excluded.value, app = excluded.app, applied_at = excluded.applied_at;
    return query select d.* from unnest(v_all) d where d.action <> 'record';
end
$$;
