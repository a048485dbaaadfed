-- Expansion of events to deliveries. See docs/design/endpoints.md.
-- grant: worker

-- Expand claimed events: write each event and its deliveries, unless it was expanded before.
-- `p_job_ids` are jobs of the queue `forebay.publish` that an open lease has.
--
-- Columns:
--   deliveries  how many were written
--   unknown     jobs whose kind is not an event type
--   missing     jobs that no open lease has
--
-- Errors: JQ012; 53400 the queue `forebay.deliver` is full.
-- Transaction: alone.
-- Locks: that of the routers, shared.
--
-- Inside: Invariants "expanded once", "each filter once per event". The payloads are read from the
-- log.
-- pages: 250 + 60 a job + 60 a delivery
create function forebay.route_v1(p_job_ids bigint[], out deliveries bigint, out unknown bigint[], out missing bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_rows  forebay.log[];
    v_found bigint[];
    v_new   forebay._new_delivery[];
begin
    perform forebay._require_alone('forebay.route_v1()');
    perform forebay._lock_routing(true);
    v_rows := forebay._claimed_rows('forebay.publish', p_job_ids);
    v_found := array(select coalesce(r.job_id, r.seq) from unnest(v_rows) r);
    missing := array(select i from unnest(p_job_ids) i where i <> all (v_found));
    unknown := array(select coalesce(r.job_id, r.seq) from unnest(v_rows) r
                     where not exists (select from forebay.event_type t where t.name = r.kind));

    -- A later statement than the lock: it sees the subscriptions that were activated.
    with event as materialized (
        select row_number() over (order by r.xid, r.seq) as nr, coalesce(r.job_id, r.seq) as event_id, r.enqueued_at as published_at, r.xid,
               r.kind as event_type, forebay._event_payload(r.args) as payload, l.priority, {options of r but max_attempts, limit_key},
               coalesce(r.expires_at, r.enqueued_at + interval '30 days') as expires_at
        from unnest(v_rows) r
        join forebay.event_type t on t.name = r.kind
        cross join lateral (select i.priority from forebay.lane i where i.lane = r.lane limit 1) l),
    -- Each event looks up its subscriptions by itself, whatever the planner knows of the tables: a join of events with candidates would be
    -- quadratic in the events if the statistics are those of empty tables.
    matched as materialized (
        select e.*, array(
            select s.endpoint_id
            from (select i.* from forebay.subscription i where i.event_type = e.event_type and i.filter_member is null
                  union all
                  select i.*
                  from jsonb_each(case when jsonb_typeof(e.payload) = 'object' then e.payload end) m
                  cross join lateral (select * from forebay.subscription i
                                      where i.event_type = e.event_type and i.filter_member = m.key and i.filter_value = m.value offset 0) i
                  where jsonb_typeof(m.value) in ('string', 'number', 'boolean', 'null')) s
            where s.active_at is not null and (s.filter is null or e.payload @> s.filter)
              and forebay._is_admitted(e.published_at, e.xid, s.start_at, s.start_after)
              and (select p.disabled_at is null from forebay.endpoint p where p.endpoint_id = s.endpoint_id)
            order by s.endpoint_id) as endpoints
        from event e),
    written as (
        insert into forebay.published (
            event_id, published_at, xid, event_type, payload, priority, {options but max_attempts, limit_key}, expires_at, keep_until,
            routed_at, deliveries)
        select e.event_id, e.published_at, e.xid, e.event_type, e.payload, e.priority, {options of e but max_attempts, limit_key},
               e.expires_at, greatest(e.expires_at, e.published_at + forebay._retention(1)), forebay._now(), cardinality(e.endpoints)
        from matched e
        order by e.nr
        on conflict do nothing
        returning event_id, published_at)
    select array_agg(row(e.nr, p.endpoint_id, e.event_id, e.published_at, e.event_type, e.priority, e.expires_at, {options of e but max_attempts, limit_key, headers})::forebay._new_delivery
                     order by e.nr, p.endpoint_id)
    into v_new
    from matched e
    cross join lateral unnest(e.endpoints) p (endpoint_id)
    -- In a case the rows are hashed; a join could be a nested loop.
    where case when (e.event_id, e.published_at) in (select w.event_id, w.published_at from written w) then true else false end;
    deliveries := forebay._add_deliveries(v_new);
end
$$;


-- Does a subscription with that start get an event?
create function forebay._is_admitted(p_published_at timestamptz, p_xid xid8, p_start_at timestamptz, p_start_after pg_snapshot) returns boolean
language sql immutable
as $$
    select case when p_start_at is not null then p_published_at >= p_start_at
                when p_start_after is not null then not pg_visible_in_snapshot(p_xid, p_start_after)
                else true end
$$;


-- The rows of jobs of a queue that open leases have, whether settled or not.
create function forebay._claimed_rows(p_queue text, p_job_ids bigint[]) returns forebay.log[]
language plpgsql stable
-- planner: in order
as $$
declare
    v_lanes bigint[];
    v_xids  xid8[];
    v_seqs  bigint[];
    v_left  bigint[];
    v_piece record;
    v_some  forebay.log[];
    v_rows  forebay.log[] := '{}';
begin
    select array_agg(o.lane), array_agg(o.xid), array_agg(o.seq) into v_lanes, v_xids, v_seqs
    from (select coalesce(b.lanes[u.nr], b.lane) as lane, coalesce(b.xids[u.nr], b.xids[1]) as xid, u.seq
          from forebay.lease e
          join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
          join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
          join forebay.queue_group g on g.group_id = b.group_id and g.queue = p_queue
          cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
          where e.closed_at is null) o;
    -- The first row of a job has its id as number. Only what is missing then is looked for in the other rows.
    for v_pass in 1 .. 2 loop
        v_left := case v_pass when 1 then p_job_ids
                              else array(select i from unnest(p_job_ids) i except select coalesce(r.job_id, r.seq) from unnest(v_rows) r) end;
        exit when v_left = '{}';
        for v_piece in
            select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.seq) as seqs
            from unnest(v_lanes, v_xids, v_seqs) as u (lane, xid, seq)
            cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
            where v_pass = 2 or u.seq = any (v_left)
            group by s.segment_id
        loop
            execute format(
                'select array_agg(l.row) from (
                     select distinct on (coalesce(l.job_id, l.seq)) row(l.*)::forebay.log as row
                     from unnest($1, $2, $3) u (lane, xid, seq)
                     cross join lateral (select * from forebay.log_%s i
                                         where i.lane = u.lane and i.xid = u.xid and i.seq = u.seq limit 1) l
                     where coalesce(l.job_id, l.seq) = any ($4)
                     order by coalesce(l.job_id, l.seq), l.seq desc) l', v_piece.segment_id)
                into v_some using v_piece.lanes, v_piece.xids, v_piece.seqs, v_left;
            v_rows := v_rows || v_some;
        end loop;
    end loop;
    return array(select r from (select distinct on (coalesce(u.job_id, u.seq)) u as r from unnest(v_rows) u order by coalesce(u.job_id, u.seq), u.seq desc) d);
end
$$;


-- Write deliveries, in their order; returns how many. Those beyond max_waiting of an endpoint that drops are dropped and counted.
create function forebay._add_deliveries(p_new forebay._new_delivery[]) returns bigint
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_now     constant timestamptz := forebay._now();
    v_jobs    forebay._job_input[];
    v_bounded bigint[];  -- endpoints that drop
    v_dropped bigint[];
    v_one     record;
begin
    if p_new is null then
        return 0;
    end if;
    with endpoint as materialized (
        select e.endpoint_id, e.name, e.max_age, e.max_waiting is not null and e.when_full = 'drop' as is_bounded,
               case when e.max_waiting is not null and e.when_full = 'drop' then e.max_waiting - (select w.waiting from forebay._endpoint_waiting(e.name) w) end as free
        from forebay.endpoint e where e.endpoint_id = any (array(select distinct n.endpoint_id from unnest(p_new) n))),
    ranked as materialized (
        select n.*, e.name, e.free, least(n.expires_at, v_now + e.max_age) as ends_at,
               case when e.is_bounded then row_number() over (partition by n.endpoint_id order by n.nr) end as place
        from unnest(p_new) n join endpoint e using (endpoint_id)),
    bounded as (
        select r.endpoint_id, count(*) filter (where r.place > r.free) as dropped
        from ranked r where r.place is not null group by r.endpoint_id)
    select (select array_agg(row('forebay.deliver', r.priority, null, null, r.ends_at, {job of j})::forebay._job_input order by r.nr, r.endpoint_id)
            from ranked r
            cross join lateral (
                select r.event_type as kind,
                       jsonb_build_object('event', jsonb_build_array(r.event_id, to_char(r.published_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
                                          'endpoint', r.endpoint_id) as args,
                       case when r.ordering_key is not null then forebay._delivery_key(r.name, r.ordering_key) end as ordering_key,
                       null::integer as max_attempts, null::jsonb as headers, r.name as limit_key,
                       {options of r but max_attempts, headers, ordering_key, limit_key}) j
            where (r.place > r.free) is not true and r.ends_at > v_now),
           (select array_agg(b.endpoint_id order by b.endpoint_id) from bounded b),
           (select array_agg(b.dropped order by b.endpoint_id) from bounded b)
    into v_jobs, v_bounded, v_dropped;

    for v_one in select b.* from unnest(v_bounded, v_dropped) b (endpoint_id, dropped) loop
        perform forebay._record_dropped(v_one.endpoint_id, v_one.dropped);
    end loop;
    if v_jobs is null then
        return 0;
    end if;
    perform forebay._enqueue_jobs(v_jobs);
    return cardinality(v_jobs);
end
$$;


-- Count dropped deliveries, and record in the event log when an endpoint begins to drop them, and when it takes all again.
create function forebay._record_dropped(p_endpoint_id bigint, p_dropped bigint) returns void
language plpgsql volatile
as $$
declare
    v_endpoint forebay.endpoint;
begin
    if p_dropped > 0 then
        insert into forebay.endpoint_activity (endpoint_id, at, accepted, failed, rejected, dropped, latencies)
        values (p_endpoint_id, forebay._now(), 0, 0, 0, p_dropped, '{}');
    end if;
    if coalesce((select t.is_overfull from forebay.endpoint_state t where t.endpoint_id = p_endpoint_id), false) = (p_dropped > 0) then
        return;
    end if;
    insert into forebay.endpoint_state as t (endpoint_id, is_overfull) values (p_endpoint_id, p_dropped > 0)
    on conflict (endpoint_id) do update set is_overfull = excluded.is_overfull where t.is_overfull <> excluded.is_overfull;
    if found then
        select * into v_endpoint from forebay.endpoint e where e.endpoint_id = p_endpoint_id;
        if p_dropped > 0 then
            perform forebay._record_event('endpoints.overfull', 'forebay.deliver', p_subject_id => p_endpoint_id, p_detail => v_endpoint.name,
                                          p_new => jsonb_build_object('max_waiting', v_endpoint.max_waiting), p_count => p_dropped);
        else
            perform forebay._record_event('endpoints.takes_all', 'forebay.deliver', p_subject_id => p_endpoint_id, p_detail => v_endpoint.name);
        end if;
    end if;
end
$$;
