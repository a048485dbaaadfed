-- grant: producer, worker

-- Send a message to one endpoint for each element of `payloads`; returns the ids of the deliveries
-- in the same order. This is the fastest way to send many. The other parameters are those of
-- forebay.send() and apply to all messages.
--
-- Errors: those of forebay.send(), naming the first bad message by its index, from 0. All messages
--   are sent, or none.
-- Transaction: the caller's.
-- Locks: as forebay.enqueue().
-- See: docs/howto/endpoints.md#send-a-message
-- pages: 80 + 8 a message
create function forebay.send_many(
    endpoint text, payloads jsonb[], kind text default 'message', priority integer default 100, delay interval default null,
    run_at timestamptz default null, expires_at timestamptz default null, {options parameters but max_attempts, limit_key},
    url_suffix text default null, timeout interval default null)
returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_endpoint constant forebay.endpoint := forebay._open_endpoint(send_many.endpoint);
    v_request  constant jsonb := forebay._request_args(send_many.url_suffix, extract(epoch from send_many.timeout));
    v_first    forebay._job_input;
    v_problem  text;
    v_jobs     forebay._job_input[];
begin
    if coalesce(cardinality(send_many.payloads), 0) = 0 then
        return '{}';
    end if;
    if v_request <> '{}' then
        perform forebay._check_request(v_endpoint, send_many.url_suffix, extract(epoch from send_many.timeout), 0);
    end if;
    v_first := (
        select row('forebay.deliver', send_many.priority, extract(epoch from send_many.delay), send_many.run_at,
                   forebay._delivery_end(send_many.expires_at, send_many.run_at, send_many.delay, v_endpoint.max_age), {job of o})::forebay._job_input
        from (select '{}'::jsonb as args, send_many.kind, null::integer as max_attempts, v_endpoint.name as limit_key,
                     forebay._delivery_key(v_endpoint.name, send_many.ordering_key) as ordering_key,
                     {options of send_many but max_attempts, limit_key, ordering_key}) o);
    v_problem := forebay._job_problem(v_first, send_many.delay);
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = 'message 0: ' || v_problem, detail = jsonb_build_object('index', 0),
            hint = 'Nothing was sent: a bulk call is all or none.';
    end if;
    v_jobs := array(
        select row(v_first.queue, v_first.priority, v_first.delay, v_first.run_at, v_first.expires_at, {job of j})::forebay._job_input
        from unnest(send_many.payloads) with ordinality p (payload, nr)
        cross join lateral (select jsonb_build_object('payload', p.payload, 'endpoint', v_endpoint.endpoint_id) || v_request as args,
                                   {job of v_first but args}) j
        order by p.nr);
    perform forebay._check_payloads(send_many.payloads, v_endpoint.endpoint_id, v_request);
    perform forebay._require_below_bound(v_endpoint, cardinality(v_jobs));
    return forebay._enqueue_jobs(v_jobs);
end
$$;


-- Send messages to endpoints, all or none; returns the ids of the deliveries in input order.
-- `messages` is a JSON array of objects with the parameters of forebay.send() as keys, `delay` and
-- `timeout` in seconds; only `endpoint` and `payload` are required. With `unique_as` an id may be that of an
-- existing delivery.
--
-- Errors: those of forebay.send(), naming the first bad message by its index, from 0.
-- Transaction: the caller's.
-- Locks: as forebay.enqueue().
-- See: docs/howto/endpoints.md#send-a-message
-- pages: 80 + 10 a message
create function forebay.send_many(messages jsonb) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_jobs forebay._job_input[];
    v_full jsonb;
    v_made record;
begin
    perform forebay._check_messages(send_many.messages);
    begin
        select array_agg(row('forebay.deliver', coalesce(r.priority, 100), r.delay, r.run_at,
                             forebay._delivery_end(r.expires_at, r.run_at, make_interval(secs => d.seconds), n.max_age), {job of j})::forebay._job_input
                         order by r.nr)
        into v_jobs
        from (select m.value as message, m.nr, m.queue, m.priority, m.delay, m.run_at, m.expires_at, {job of m but args}
              from rows from (jsonb_array_elements(send_many.messages), jsonb_populate_recordset(null::forebay._job_input, send_many.messages))
                   with ordinality m (value, queue, priority, delay, run_at, expires_at, {job}, nr)) r
        join forebay.endpoint n on n.name = r.message ->> 'endpoint'
        cross join lateral (select case when r.delay between 0 and 3155760000 then r.delay end as seconds) d
        cross join lateral (
            select jsonb_build_object('payload', r.message -> 'payload', 'endpoint', n.endpoint_id)
                   || forebay._request_args(r.message ->> 'url_suffix', (r.message ->> 'timeout')::numeric) as args, coalesce(r.kind, 'message') as kind,
                   null::integer as max_attempts, n.name as limit_key, case when r.ordering_key is not null then forebay._delivery_key(n.name, r.ordering_key) end as ordering_key,
                   {job of r but args, kind, max_attempts, limit_key, ordering_key}) j;
    exception when data_exception then
        raise exception using errcode = 'JQ001', column = 'messages', message = format('an option of a message has the wrong type: %s', sqlerrm),
            hint = 'Nothing was sent: a bulk call is all or none.';
    end;
    if v_jobs is null then
        return '{}';
    end if;
    perform forebay._check_jobs(v_jobs, 'message');
    select jsonb_object_agg((n.endpoint).name, w.waiting) into v_full
    from (select e as endpoint, count(*) as more from unnest(v_jobs) j join forebay.endpoint e on e.name = j.limit_key group by e.endpoint_id) n
    cross join lateral (select forebay._waiting_beyond(n.endpoint, n.more) as waiting) w where w.waiting is not null;
    if send_many.messages @? '$[*].unique_as ? (@ != null)' then
        v_made := forebay._enqueue_mixed(v_jobs, array(
            select nullif(nullif(e.value -> 'unique_as', 'null'), '"none"')
            from jsonb_array_elements(send_many.messages) with ordinality e order by e.ordinality), 'message');
        if v_full is not null then
            perform forebay._require_below_full(v_full, v_jobs, v_made.news);
        end if;
        return v_made.ids;
    elsif v_full is not null then
        perform forebay._require_below_full(v_full, v_jobs, null);
    end if;
    return forebay._enqueue_jobs(v_jobs);
end
$$;


-- Refuse messages of which some would exceed max_waiting of their endpoint. p_full: how many wait for each endpoint of which all would. Messages that
-- were there before add nothing; p_news says which are new, null: all.
--
-- Errors: 53400, for the first of these endpoints.
create function forebay._require_below_full(p_full jsonb, p_jobs forebay._job_input[], p_news boolean[]) returns void
language plpgsql volatile
-- planner: in order
as $$
declare
    v_full record;
begin
    select e.name, f.value::bigint as waiting, n.more, e.max_waiting into v_full
    from jsonb_each_text(p_full) f
    join forebay.endpoint e on e.name = f.key
    cross join lateral (select count(*) as more
                        from unnest(p_jobs) with ordinality j
                        left join unnest(p_news) with ordinality w (is_new, ordinality) using (ordinality)
                        where j.limit_key = e.name and coalesce(w.is_new, true)) n
    where f.value::bigint + n.more > e.max_waiting
    order by e.endpoint_id limit 1;
    if found then
        perform forebay._raise_full(v_full.name, v_full.waiting, v_full.more, v_full.max_waiting, 'sent');
    end if;
end
$$;


-- Refuse the first payload that is null, too large or too deep.
--
-- Errors: JQ001, JQ002, JQ003.
create function forebay._check_payloads(p_payloads jsonb[], p_endpoint_id bigint, p_request jsonb) returns void
language plpgsql stable
as $$
declare
    v_odd record;
begin
    for v_odd in
        select p.payload, p.nr - 1 as index from unnest(p_payloads) with ordinality p (payload, nr)
        where (pg_column_size(p.payload) <= 400 and octet_length(p.payload::text) <= 400) is not true
        order by p.nr
    loop
        if v_odd.payload is null then
            raise exception using errcode = 'JQ001', column = 'payloads', message = format('message %s: payload is null', v_odd.index),
                detail = jsonb_build_object('index', v_odd.index), hint = $h$Nothing was sent. The value null of JSON is 'null'::jsonb.$h$;
        end if;
        perform forebay._check_args(jsonb_build_object('payload', v_odd.payload, 'endpoint', p_endpoint_id) || p_request, v_odd.index, 'message');
    end loop;
end
$$;


-- Refuse the first message that has no form of one, or whose endpoint does not exist or is disabled.
--
-- Errors: JQ001, JQ050, JQ052.
create function forebay._check_messages(p_messages jsonb) returns void
language plpgsql stable
as $$
declare
    v_keys constant text[] := array['endpoint', 'payload', 'kind', 'priority', 'delay', 'run_at', 'expires_at', {options keys but max_attempts, limit_key}, 'unique_as', 'url_suffix', 'timeout'];
    v_bad  record;
begin
    if jsonb_typeof(p_messages) is distinct from 'array' then
        raise exception using errcode = 'JQ001', column = 'messages',
            message = format('messages must be a JSON array, not %s', coalesce(jsonb_typeof(p_messages), 'null')),
            hint = 'Pass an array of objects, one for each message.';
    end if;
    select e.nr - 1 as index, e.value ->> 'endpoint' as endpoint, n.endpoint_id, n.disabled_at, n.disabled_why, case
        when jsonb_typeof(e.value) <> 'object' then format('must be a JSON object, not %s', jsonb_typeof(e.value))
        when (e.value - v_keys) <> '{}' then format('unknown option %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(e.value - v_keys) k limit 1))
        when jsonb_typeof(e.value -> 'endpoint') is distinct from 'string' then 'has no endpoint'
        when not e.value ? 'payload' then 'has no payload'
        when coalesce(jsonb_typeof(e.value -> 'url_suffix'), 'null') not in ('string', 'null') then 'url_suffix is not a text'
        when coalesce(jsonb_typeof(e.value -> 'timeout'), 'null') not in ('number', 'null') then 'timeout is not a number of seconds' end as problem
    into v_bad
    from jsonb_array_elements(p_messages) with ordinality e (value, nr)
    left join forebay.endpoint n on jsonb_typeof(e.value) = 'object' and n.name = e.value ->> 'endpoint'
    where case when jsonb_typeof(e.value) = 'object'
               then (e.value - v_keys) <> '{}' or n.endpoint_id is null or n.disabled_at is not null or not e.value ? 'payload'
                    or e.value ?| '{url_suffix,timeout}' and (coalesce(jsonb_typeof(e.value -> 'url_suffix'), 'null') not in ('string', 'null')
                                                              or coalesce(jsonb_typeof(e.value -> 'timeout'), 'null') not in ('number', 'null'))
               else true end
    order by e.nr limit 1;
    if not found then
        if p_messages @? '$[*] ? (exists (@.url_suffix) || exists (@.timeout))' then
            perform forebay._check_request(n, e.value ->> 'url_suffix', (e.value ->> 'timeout')::numeric, e.nr - 1)
            from jsonb_array_elements(p_messages) with ordinality e (value, nr) join forebay.endpoint n on n.name = e.value ->> 'endpoint'
            where e.value ?| '{url_suffix,timeout}';
        end if;
        return;
    elsif v_bad.problem is not null then
        raise exception using errcode = 'JQ001', column = 'messages', message = format('message %s: %s', v_bad.index, v_bad.problem),
            detail = jsonb_build_object('index', v_bad.index),
            hint = 'Nothing was sent. The options are ' || array_to_string(v_keys, ', ') || '.';
    elsif v_bad.endpoint_id is null then
        raise exception using errcode = 'JQ050', message = format('message %s: endpoint %s not found', v_bad.index, quote_literal(left(v_bad.endpoint, 100))),
            detail = jsonb_build_object('endpoint', left(v_bad.endpoint, 100), 'index', v_bad.index),
            hint = 'Nothing was sent. forebay.endpoints() lists all endpoints.';
    end if;
    raise exception using errcode = 'JQ052', message = format('message %s: endpoint %s is disabled', v_bad.index, quote_literal(v_bad.endpoint)),
        detail = jsonb_build_object('endpoint', v_bad.endpoint, 'why', v_bad.disabled_why, 'index', v_bad.index),
        hint = 'Nothing was sent. forebay.enable_endpoint() enables it.';
end
$$;
