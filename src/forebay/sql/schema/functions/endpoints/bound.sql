-- The bound of what waits for an endpoint. See docs/design/endpoints.md, "Backpressure is the endpoint's".

-- Refuse p_more messages when they would exceed max_waiting of their endpoint.
--
-- Errors: 53400.
create function forebay._require_below_bound(e forebay.endpoint, p_more bigint) returns void
language plpgsql volatile
as $$
declare
    v_waiting constant bigint := forebay._waiting_beyond(e, p_more);
begin
    if v_waiting is not null then
        perform forebay._raise_full(e.name, v_waiting, p_more, e.max_waiting, 'sent');
    end if;
end
$$;


-- How many deliveries of an endpoint wait, if p_more would exceed its max_waiting; null: they would not.
create function forebay._waiting_beyond(e forebay.endpoint, p_more bigint) returns bigint
language plpgsql volatile
-- planner: in order
as $$
declare
    v_waiting bigint;
begin
    if e.max_waiting is null or forebay._wait_at_most(e.max_waiting - p_more) then
        return null;
    end if;
    select b.waiting into v_waiting from forebay._backlogs(array[e.endpoint_id]) b;
    return case when v_waiting + p_more > e.max_waiting then v_waiting end;
end
$$;


-- Refuse events when their deliveries would exceed max_waiting of an endpoint that refuses them. Types and payloads belong together.
--
-- Errors: 53400, for the first of these endpoints.
create function forebay._require_below_bounds(p_types text[], p_payloads jsonb[]) returns void
language plpgsql volatile
-- planner: in order
as $$
declare
    v_least constant bigint := (select e.max_waiting from forebay.endpoint e
                                where e.when_full = 'refuse' and e.max_waiting is not null order by e.max_waiting limit 1);
    v_full  record;
begin
    if v_least is null or forebay._wait_at_most(v_least - cardinality(p_types)) then
        return;
    end if;
    select n.name, b.waiting, n.more, n.max_waiting into v_full
    from (select e.endpoint_id, e.name, e.max_waiting, count(*) as more
          from unnest(p_types, p_payloads) v (event_type, payload)
          cross join lateral (select i.* from forebay.subscription i where i.event_type = v.event_type) s
          join forebay.endpoint e on e.endpoint_id = s.endpoint_id
          where e.when_full = 'refuse' and e.max_waiting is not null and e.disabled_at is null and (s.filter is null or v.payload @> s.filter)
          group by e.endpoint_id) n
    join forebay._backlogs(array(select distinct s.endpoint_id from forebay.subscription s where s.event_type = any (p_types))) b
         on b.endpoint_id = n.endpoint_id
    where b.waiting + n.more > n.max_waiting
    order by n.endpoint_id limit 1;
    if found then
        perform forebay._raise_full(v_full.name, v_full.waiting, v_full.more, v_full.max_waiting, 'published');
    end if;
end
$$;


-- Do at most p_most deliveries wait for all endpoints together, with the events that no router has expanded? Then no single endpoint is
-- full. A few index probes, until there are as many.
create function forebay._wait_at_most(p_most bigint) returns boolean
language plpgsql volatile
-- planner: in order
as $$
declare
    v_queue    text;
    v_group_id bigint;
    v_waiting  bigint;
    v_left     bigint := p_most;
begin
    -- A job that waits has drawn a number.
    if coalesce(pg_sequence_last_value('forebay.log_seq'), 0) <= p_most then
        return true;
    end if;
    foreach v_queue in array '{forebay.deliver,forebay.publish}'::text[] loop
        v_waiting := null;
        while v_waiting is null loop
            v_group_id := forebay._waiting_group(v_queue, null);
            v_waiting := case when v_group_id is null then 0 else forebay._waiting(v_queue, v_group_id, v_left, 100, 10000) end;
        end loop;
        v_left := v_left - v_waiting;
        if v_left < 0 then
            return false;
        end if;
    end loop;
    return true;
end
$$;


-- What waits for endpoints: their parked deliveries, those that no deliverer has met, and events that no router has expanded and that have a
-- type to which they subscribe. Of what was not met and not expanded the first 10,000 count for their endpoint; the others count for each endpoint, and
-- so do deliveries that wait for their ordering key. Retries and scheduled messages do not count.
create function forebay._backlogs(p_endpoint_ids bigint[]) returns table (endpoint_id bigint, waiting bigint)
language plpgsql volatile
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_group  constant bigint := forebay._waiting_group('forebay.deliver', null);
    v_parked constant bigint := (select coalesce(sum(forebay._parked_of(v_group, e.name)), 0) from forebay.endpoint e);
    v_unmet  constant record := forebay._unread_by('forebay.deliver', 'limit_key');
    v_events constant record := forebay._unread_by('forebay.publish', 'kind');
begin
    return query
    select e.endpoint_id,
           (forebay._parked_of(v_group, e.name) + greatest(v_unmet.ready - v_parked - v_unmet.seen, 0) + greatest(v_events.ready - v_events.seen, 0)
            + coalesce((select sum(u.jobs) from unnest(v_unmet.names, v_unmet.counts) u (name, jobs) where u.name = e.name), 0)
            + coalesce((select sum(u.jobs) from unnest(v_events.names, v_events.counts) u (name, jobs)
                        where exists (select from forebay.subscription s where s.endpoint_id = e.endpoint_id and s.event_type = u.name)), 0))::bigint
    from forebay.endpoint e where e.endpoint_id = any (p_endpoint_ids);
end
$$;


-- The ready jobs of a queue, and of the first 10,000 rows in front of the cursors how many have each value of a column of the log.
create function forebay._unread_by(p_queue text, p_column text, out ready bigint, out seen bigint, out names text[], out counts bigint[])
language plpgsql volatile
-- planner: in order
as $$
declare
    v_group   constant bigint := forebay._waiting_group(p_queue, null);
    v_cursors forebay._cursor[];
begin
    select coalesce(sum(r), 0) into ready from forebay._waiting_read(array[p_queue], v_group) w cross join lateral unnest(w.ready) r;
    v_cursors := array(
        select row(1, l.lane, case l.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end, n.snap_from, n.snap_to, s.lo, s.hi,
                   n.pos_xid, n.pos_seq)::forebay._cursor
        from (select distinct i.lane, i.audience from forebay.lane i where i.queue = p_queue and i.audience in (0, v_group, -v_group)) l
        left join forebay.queue_group g on g.group_id = v_group
        left join lateral (select i.* from forebay.batch i where i.group_id = v_group and i.lane = l.lane order by i.no desc limit 1) n on true
        left join forebay.segment s on s.segment_id = n.pos_segment);
    execute format('select coalesce(sum(k.jobs), 0), array_agg(k.name), array_agg(k.jobs)
                    from (select u.name, count(*) as jobs from (%s limit 10000) u group by u.name) k',
                   forebay._unread_sql(v_cursors, format('l.%I as name', p_column)))
        into seen, names, counts using v_cursors;
end
$$;


-- How many deliveries of an endpoint are parked.
create function forebay._parked_of(p_group_id bigint, p_name text) returns bigint
language sql stable
-- planner: in order
as $$
    select coalesce((select i.waiting from forebay.limit_run i
                     where i.group_id = p_group_id and i.limit_key = p_name order by i.no desc limit 1), 0)
$$;


-- Errors: 53400.
create function forebay._raise_full(p_name text, p_waiting bigint, p_more bigint, p_max bigint, p_done text) returns void
language plpgsql stable
as $$
begin
    raise exception using errcode = '53400',
        message = format('endpoint %s is full: %s deliveries wait, %s more would exceed its max_waiting %s', quote_literal(p_name), p_waiting, p_more, p_max),
        detail = jsonb_build_object('endpoint', p_name, 'waiting', p_waiting, 'max_waiting', p_max),
        hint = format('Nothing was %s. See what holds it with forebay.endpoints(). Raise its max_waiting or set when_full to drop with forebay.alter_endpoint(), or disable it.', p_done);
end
$$;
