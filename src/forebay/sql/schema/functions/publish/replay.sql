-- grant: operator

-- Deliver events once more: those published from `since` to before `until` (null: now) that the
-- endpoint's subscriptions and filters select when a router works on them. Returns the id of the
-- job that does it in steps. The messages have the ids that they had. The deliveries expire after
-- 30 days, or after the endpoint's `max_age` if that is less.
--
-- Errors: JQ001 the endpoint is disabled, or a time is refused; JQ050 no such endpoint.
create function forebay.replay_endpoint(name text, since timestamptz, until timestamptz default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint_id constant bigint := forebay._subscriber(replay_endpoint.name);
    v_until       constant timestamptz := coalesce(replay_endpoint.until, forebay._now());
    v_id          bigint;
    v_job_id      bigint;
begin
    if (isfinite(replay_endpoint.since) and replay_endpoint.since < v_until) is not true then
        raise exception using errcode = 'JQ001', column = 'since',
            message = format('since %s is not a time before %s', coalesce(replay_endpoint.since::text, 'null'), v_until);
    elsif exists (select from forebay.endpoint e where e.endpoint_id = v_endpoint_id and e.disabled_at is not null) then
        raise exception using errcode = 'JQ001', column = 'endpoint',
            message = format('endpoint %s is disabled', quote_literal(replay_endpoint.name)), hint = 'Enable it with forebay.enable_endpoint() first.';
    end if;
    insert into forebay.replay (endpoint_id, since, until, routed_to, routed_bound, created_at)
    values (v_endpoint_id, replay_endpoint.since, v_until, 0,
            coalesce(pg_sequence_last_value(pg_get_serial_sequence('forebay.published', 'route_no')::regclass), 0), forebay._now())
    returning replay_id into v_id;
    v_job_id := (forebay._enqueue_jobs(array[jsonb_populate_record(null::forebay._job_input, jsonb_build_object(
        'kind', 'forebay.replay', 'args', jsonb_build_object('replay', v_id), 'queue', 'forebay.publish', 'priority', 0))]))[1];
    perform forebay._record_event('endpoints.replay', 'forebay.deliver', p_subject_id => v_job_id, p_detail => replay_endpoint.name,
                                  p_new => jsonb_build_object('since', replay_endpoint.since, 'until', v_until));
    return v_job_id;
end
$$;


-- Redrive the dead letters of an endpoint, oldest first, at most `most` (null: all); returns their
-- number. Dead letters that others redrive now are left alone. Messages of events have the ids that
-- they had.
--
-- Errors: JQ050 no such endpoint; JQ001 a negative `most`.
-- Locks: the rows of the dead letters, and their group's (SHARE).
create function forebay.redrive_endpoint(name text, most integer default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_id    bigint;
    v_count bigint := 0;
begin
    perform forebay._require('most', coalesce(redrive_endpoint.most, 1) >= 0, redrive_endpoint.most::text, '0 or more'),
            forebay._subscriber(redrive_endpoint.name);
    for v_id in
        select d.dead_id from forebay.dead_letter d join forebay.queue_group g on g.group_id = d.group_id
        where d.queue = 'forebay.deliver' and d.limit_key = redrive_endpoint.name and d.redriven_at is null and g.closing_at is null
        order by d.enqueued_at, d.job_id
        limit redrive_endpoint.most
        for update of d skip locked
    loop
        perform forebay._redrive(v_id);
        v_count := v_count + 1;
    end loop;
    if v_count > 0 then
        perform forebay._record_event('endpoints.redrive', 'forebay.deliver', p_detail => redrive_endpoint.name, p_count => v_count);
    end if;
    return v_count;
end
$$;
