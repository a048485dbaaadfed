-- grant: operator, reader

-- The endpoints with their settings and their health, by name. No jobs are counted.
--
-- Columns:
--   breaker                 `closed`, `open`, or `half-open`: since `next_probe_at` a delivery may
--                           run as a probe
--   failures                failures in a row
--   failing_since           the first failure since the last success
--   paused_until            the endpoint asked for a pause, or an operator paused its key;
--                           `infinity`: without an end
--   waiting, waiting_since  deliveries that wait, without those that wait for a retry and those
--                           that no deliverer has met yet; since when the first of them waits
--   is_overfull             events are dropped, since `max_waiting` deliveries wait
--   accepted_per_second, failed_per_second, rejected_per_second, dropped_per_second
--                           of the last two minutes
--   p99_seconds             of 99 % of the messages accepted in the last two minutes, the longest
--                           time since their publication, rounded up to a power of two in
--                           milliseconds; null: none was accepted
--   last_success_at, last_failure_at
--                           to within 5 seconds
--   inherits                which of `retry`, `concurrency`, `breaker_threshold` and
--                           `breaker_cooldown` are those of the database: forebay.configure()
--
-- Transaction: the caller's; reads only.
-- pages: 200 + 100 an endpoint
create function forebay.endpoints(only_name text default null)
returns table (name text, endpoint_id bigint, sink text, config jsonb, retry jsonb, rate double precision, burst integer, concurrency integer,
               breaker_threshold integer, breaker_cooldown integer, disable_after interval, max_waiting bigint, max_age interval,
               keeps_response boolean, created_at timestamptz, changed_at timestamptz, disabled_at timestamptz, disabled_why text, breaker text,
               failures integer, opened_at timestamptz, next_probe_at timestamptz, failing_since timestamptz, paused_until timestamptz,
               waiting bigint, waiting_since timestamptz, is_overfull boolean, accepted_per_second double precision,
               failed_per_second double precision, rejected_per_second double precision, p99_seconds double precision,
               last_success_at timestamptz, last_failure_at timestamptz, last_error text, disable_on_gone boolean,
               when_full text, dropped_per_second double precision, inherits text[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_at constant timestamptz := forebay._now();
begin
    return query
    select e.name, e.endpoint_id, e.sink, e.config, e.retry, e.rate, e.burst, e.concurrency, e.breaker_threshold, e.breaker_cooldown,
           e.disable_after, e.max_waiting, e.max_age, e.keeps_response, e.created_at, e.changed_at, e.disabled_at, e.disabled_why,
           case when b.opened_at is null then 'closed' when b.probe_at > v_at then 'open' else 'half-open' end,
           coalesce(b.failures, 0), b.opened_at, b.probe_at, s.failing_since,
           case when e.disabled_at is null then p.until end,
           w.waiting, w.since, s.is_overfull, a.accepted / 120.0::double precision, a.failed / 120.0::double precision,
           a.rejected / 120.0::double precision, h.p99, s.last_success_at, s.last_failure_at, s.last_error,
           e.disable_on_gone, e.when_full, a.dropped / 120.0::double precision, forebay._inherited(own)
    from forebay.endpoint own
    cross join lateral forebay._with_defaults(own) e
    join forebay.endpoint_state s on s.endpoint_id = e.endpoint_id
    left join forebay.breaker b on b.queue = 'forebay.deliver' and b.key = e.name
    cross join lateral forebay._endpoint_waiting(e.name) w
    left join lateral (select coalesce(k.resume_at, 'infinity') as until from forebay.key_pause k
                       where k.queue = 'forebay.deliver' and k.sort = 'limit' and k.key = e.name and coalesce(k.resume_at > v_at, true)
                         and coalesce(k.begins_at <= v_at, true)) p on true
    cross join lateral (select coalesce(sum(i.accepted), 0) as accepted, coalesce(sum(i.failed), 0) as failed, coalesce(sum(i.rejected), 0) as rejected,
                               coalesce(sum(i.dropped), 0) as dropped
                        from forebay.endpoint_activity i
                        where i.endpoint_id = e.endpoint_id and i.at > v_at - interval '2 minutes') a
    cross join lateral (select min(c.bound) as p99
                        from (select 0.001 * power(2::double precision, u.nr - 1) as bound, sum(sum(u.count)) over (order by u.nr) as below,
                                     sum(sum(u.count)) over () as total
                              from forebay.endpoint_activity i cross join lateral unnest(i.latencies) with ordinality u (count, nr)
                              where i.endpoint_id = e.endpoint_id and i.at > v_at - interval '2 minutes'
                              group by u.nr) c
                        where c.total > 0 and c.below >= 0.99 * c.total) h
    where endpoints.only_name is null or e.name = endpoints.only_name
    order by e.name;
end
$$;
