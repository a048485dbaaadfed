-- Workers in any language: a few functions on the engine's leases, claims and settlements. See docs/design/other-languages.md.
-- grant: worker

-- Begin to work, in any language: open the groups of the queues, and a lease. Returns the worker
-- token, which forebay.take(), forebay.extend() and forebay.leave() need. Call it once in each
-- process: two processes with one token would keep each other's jobs.
--
-- Parameters:
--   worker      a name for people, at most 200 characters, none of them a control character
--   queues      1 to 100 queues
--   lease       1 second to a day: how long the worker may be silent before its jobs go to others. A
--               call of forebay.take() or forebay.extend() is a sign of life
--   group_name  the consumer group, the same for all queues
--   host, pid, app, app_version
--               what forebay.workers() shows, at most 200 characters each
--
-- Example:
--   select forebay.enter('mailer-1', array['emails'], app => 'mailer (node)');
--
-- Errors: JQ001 a bad value, JQ017 a group is being closed, JQ030 foreign cluster.
-- Transaction: any; meant to be autocommitted.
-- See: docs/howto/workers-in-other-languages.md
create function forebay.enter(
    worker text, queues text[], lease interval default '00:00:30', group_name text default 'default', host text default null,
    pid integer default null, app text default null, app_version text default null)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    v_seconds constant double precision := extract(epoch from enter.lease);
    -- A line break would make two lines of one in what people read.
    v_control constant text := E'[{control}]';
    v_problem text;
begin
    perform forebay._require('worker', length(enter.worker) between 1 and 200 and enter.worker !~ v_control, enter.worker,
                             'a name of at most 200 characters, none of them a control character'),
            forebay._require('queues', cardinality(enter.queues) between 1 and 100 and array_ndims(enter.queues) = 1, enter.queues::text, '1 to 100 queues'),
            forebay._require('lease', v_seconds between 1 and 86400, enter.lease::text, '1 second to a day'),
            forebay._require('host', coalesce(length(enter.host) <= 200 and enter.host !~ v_control, true), enter.host,
                             'at most 200 characters, none of them a control character'),
            forebay._require('app', coalesce(length(enter.app) <= 200 and enter.app !~ v_control, true), enter.app,
                             'at most 200 characters, none of them a control character'),
            forebay._require('app_version', coalesce(length(enter.app_version) <= 200 and enter.app_version !~ v_control, true), enter.app_version,
                             'at most 200 characters, none of them a control character');
    -- These are served by the library, which knows more of their jobs than their arguments.
    v_problem := (select q.queue from unnest(enter.queues) q (queue) where q.queue like 'forebay.%' limit 1);
    perform forebay._require('queues', v_problem is null, v_problem, 'queues of the application'),
            forebay.open_group(q.queue, enter.group_name)
    from (select distinct u.queue from unnest(enter.queues) u (queue) order by 1) q;
    -- Functions without a suffix keep their meaning, so no version: see forebay._require_gone().
    -- Behind a pooler a connection that is gone says nothing: no worker is suspected before its lease is over.
    return 'w' || forebay.open_lease_v1(
        enter.worker, v_seconds, v_seconds, null,
        jsonb_strip_nulls(jsonb_build_object(
            'queues', to_jsonb(enter.queues), 'group', enter.group_name, 'host', enter.host, 'pid', enter.pid, 'app', enter.app,
            'app_version', enter.app_version, 'schedules', false, 'interface', 'sql')));
end
$$;


-- The lease of a worker token.
--
-- Errors: JQ001.
create function forebay._lease_of(p_worker text) returns bigint
language plpgsql immutable
as $$
declare
    v_number constant numeric := substring(p_worker from '^w([0-9]{1,19})$');
begin
    perform forebay._require('worker', v_number <= 9223372036854775807, p_worker, 'a worker token, as enter() returns it');
    return v_number;
end
$$;


-- Errors: JQ010.
create function forebay._refuse_ended(p_worker text, p_lease_id bigint) returns void
language plpgsql immutable
as $$
begin
    raise exception using errcode = 'JQ010',
        message = format('the lease of worker %s has ended, or never began', p_worker),
        detail = jsonb_build_object('lease', p_lease_id),
        hint = 'Its jobs were given to other workers. Begin again with forebay.enter().';
end
$$;
