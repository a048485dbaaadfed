-- A setting that is a number; null: none.
create function forebay._setting_value(p_name text) returns bigint
language sql stable
as $$ select (s.value #>> '{}')::bigint from forebay.setting s where s.name = p_name $$;


-- What each setting may be. The order is that of forebay.settings().
--
-- sort: integer, number, boolean, choice (of `choices`) or retries, a value that forebay._retry_problem() accepts. lowest and highest: the range of
-- a number. is_owners: only the owner of the schema may set it, since it lays out the log. is_followed: workers know it by their heartbeats.
create function forebay._setting_rules()
returns table (nr integer, name text, sort text, built_in jsonb, lowest numeric, highest numeric, choices text[], unit text, is_owners boolean,
               is_followed boolean, meaning text)
language sql immutable
as $$
    values
        (1, 'max_attempts', 'integer', '20'::jsonb, 1::numeric, 10000::numeric, null::text[], 'attempts', false, true,
         'attempts of a job, in all; then it is a dead letter'),
        (2, 'retry_strategy', 'choice', '"exponential"', null, null, '{fixed,linear,exponential,polynomial}', null, false, true,
         'how the delays between attempts grow'),
        (3, 'retry_base_seconds', 'number', '5', 0.001, 3153600000, null, 'seconds', false, true, 'delay after the first failure'),
        (4, 'retry_cap_seconds', 'number', '3600', 0.001, 3153600000, null, 'seconds', false, true, 'longest delay'),
        (5, 'retry_jitter', 'boolean', 'true', null, null, null, null, false, true,
         'each delay is drawn from the upper half of its length'),
        (6, 'breaker_failures', 'integer', '10', 1, 1000, null, 'failures', false, true,
         'failures in a row that open a breaker, of a limit key or an endpoint'),
        (7, 'breaker_cooldown_seconds', 'integer', '30', 5, 3600, null, 'seconds', false, true,
         'time from the opening of a breaker to its first probe'),
        (8, 'breaker_cooldown_max_seconds', 'integer', '600', 5, 86400, null, 'seconds', false, true,
         'longest time between two probes of a limit key; those of endpoints keep the first one'),
        (9, 'endpoint_retry', 'retries', '"standard"', null, null, null, null, false, false,
         'retries of endpoints: a preset, delays in seconds, or a policy'),
        (10, 'endpoint_concurrency', 'integer', '50', 1, 1000000, null, 'deliveries', false, false,
         'deliveries of an endpoint that run at once, over all deliverers'),
        (11, 'max_waiting', 'integer', 'null', 1, 1000000000000, null, 'jobs', false, false,
         'jobs that may wait in a queue; further ones are refused'),
        (12, 'lease_seconds', 'integer', '30', 10, 3600, null, 'seconds', false, true,
         'a worker without a heartbeat for this time loses its jobs'),
        (13, 'retention_days', 'integer', '30', 0, 36500, null, 'days', false, false, 'settled segments older than this are emptied'),
        (14, 'retention_bytes', 'integer', '20000000000', 0, 1000000000000000000, null, 'bytes', false, false,
         'the oldest settled segments beyond this total size are emptied'),
        (15, 'lane_idle_hours', 'integer', '24', 0, 876000, null, 'hours', false, false, 'lanes without jobs for this time are forgotten in steps'),
        (16, 'args_bytes_max', 'integer', '1048576', 1024, 104857600, null, 'bytes', false, false, 'size of the arguments of a job as JSON'),
        -- Small arguments are never deeper than 64: see _check_args.
        (17, 'args_depth_max', 'integer', '64', 64, 200, null, 'levels', false, false, 'nesting of the arguments of a job'),
        (18, 'result_bytes_max', 'integer', '65536', 1024, 104857600, null, 'bytes', false, false,
         'size of a kept result as JSON; a larger one is not kept'),
        (19, 'segment_rows', 'integer', '1000000', 100, 100000000, null, 'jobs', true, false, 'job numbers per segment of the log'),
        (20, 'reserve_rows', 'integer', '64000000', 1000, 1000000000000, null, 'jobs', true, false,
         'job numbers for which segments are made ahead'),
        (21, 'metric_label_sets', 'integer', '0', 0, 1000, null, 'label sets', false, false,
         'label sets of the metrics by tag; further ones are added up as other. 0: no metrics by tag')
$$;


-- The settings that workers follow and that were set, as an object; null: none.
create function forebay._followed_settings() returns jsonb
language sql stable
as $$
    select jsonb_object_agg(s.name, s.value) from forebay.setting s
    where s.set_at is not null and s.name in (select r.name from forebay._setting_rules() r where r.is_followed)
$$;


-- An endpoint with the settings of the database where it has none.
create function forebay._with_defaults(e forebay.endpoint) returns forebay.endpoint
language plpgsql stable
as $$
begin
    e.retry := coalesce(e.retry, (select s.value from forebay.setting s where s.name = 'endpoint_retry'));
    e.concurrency := coalesce(e.concurrency, forebay._setting_value('endpoint_concurrency'));
    e.breaker_threshold := coalesce(e.breaker_threshold, forebay._setting_value('breaker_failures'));
    e.breaker_cooldown := coalesce(e.breaker_cooldown, forebay._setting_value('breaker_cooldown_seconds'));
    return e;
end
$$;


-- The settings of an endpoint that are those of the database.
create function forebay._inherited(e forebay.endpoint) returns text[]
language sql stable
as $$
    select array_remove(array[case when e.retry is null then 'retry' end, case when e.concurrency is null then 'concurrency' end,
                              case when e.breaker_threshold is null then 'breaker_threshold' end,
                              case when e.breaker_cooldown is null then 'breaker_cooldown' end], null)
$$;
