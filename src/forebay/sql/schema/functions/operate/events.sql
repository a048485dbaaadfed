-- grant: operator, reader

-- What operators did, newest first: pauses, limits, cancellations, redrives, settings, acts of the
-- guard and others.
--
-- Parameters:
--   only_queue, only_act  null: any. An act is the name of a command, such as `queues.pause`, or
--                         the first part of several, such as `queues`
--   since, until          bound the time; `until` is excluded
--   most                  1 to 10,000
--
-- Columns:
--   act          the name of the command
--   role, actor  the login role, and the value that the setting `forebay.actor` had in the
--                transaction of the act
--   old, new     what was before and is now, or which jobs were chosen. For acts of the guard,
--                `new` has the outcome; without one the guard was stopped in between
--
-- Errors: JQ001 `most` is out of range.
-- See: docs/howto/event-log.md
create function forebay.events(
    only_queue text default null, only_act text default null, since timestamptz default null, until timestamptz default null,
    most integer default 50)
returns table (event_id bigint, at timestamptz, role text, actor text, act text, queue text, group_name text, kind text,
               subject_id bigint, old jsonb, new jsonb, count bigint, detail text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
begin
    if (events.most between 1 and 10000) is not true then
        raise exception using errcode = 'JQ001', column = 'most',
            message = format('most %s is outside 1 to 10000', coalesce(events.most::text, 'null'));
    end if;
    return query
    select * from (
        (select e.event_id, e.at, e.role, e.actor, e.act, e.queue, e.group_name, e.kind, e.subject_id, e.old, e.new, e.count, e.detail
         from forebay.event e
         where e.at >= coalesce(events.since, '-infinity') and e.at < coalesce(events.until, 'infinity')
           and (events.only_queue is null or e.queue = events.only_queue)
           and (events.only_act is null or e.act = events.only_act or starts_with(e.act, events.only_act || '.'))
         order by e.at desc, e.event_id desc limit events.most)
        union all
        (select g.event_id, g.at, g.acted_as, null, 'guard.' || replace(g.action, ' ', '-'), null, null, null, null,
                jsonb_strip_nulls(jsonb_build_object(
                    'server', g.server, 'user', g.user_name, 'application', g.application, 'database', g.database_name, 'state', g.state,
                    'xact_start', g.xact_start)),
                jsonb_build_object('outcome', g.outcome), null,
                format('%s %s: %s', g.holder, g.name, g.reason)
         from forebay.guard_event g
         where g.at >= coalesce(events.since, '-infinity') and g.at < coalesce(events.until, 'infinity')
           and events.only_queue is null
           and (events.only_act is null or events.only_act = 'guard' or 'guard.' || replace(g.action, ' ', '-') = events.only_act)
         order by g.at desc limit events.most)) found
    order by 2 desc, 1 desc limit events.most;
end
$$;
