-- grant: operator

-- Set limits of a queue: how many jobs may wait, and how many start per second and run at once,
-- over all workers of a group, in all and of each limit key. Null leaves a limit unchanged. Returns
-- the previous limits, null for none.
--
-- The function first removes the limits named in `remove`, then sets the given ones. So `remove =>
-- '{all}', concurrency => 10` leaves `concurrency` as the only limit.
--
-- Parameters:
--   max_waiting        how many jobs may wait, at least 1. Enqueues beyond it fail with `53400`.
--                      Ready, scheduled, retrying and parked jobs of one group count. Jobs of other
--                      open transactions are not seen, so together they can exceed the limit
--   max_waiting_group  the group whose waiting jobs count; by default, and after its removal,
--                      `default`. Other groups stop no enqueue. Removing `max_waiting` removes it
--   rate, key_rate     how many start per second, 0.000001 to 1000000
--   burst, key_burst   how many may start at once after an idle time, 1 to 1000000; unset: what the
--                      rate allows in one second, at least 1. Only with a rate
--   concurrency, key_concurrency
--                      how many run at once, 1 to 1000000
--   remove             names of the limits to remove, or `all`. `rate` also removes `burst`, and
--                      `key_rate` also `key_burst`
--
-- Errors: JQ001 a bad name or number, or a burst would be left without its rate; nothing is changed
--   then.
-- Transaction: the caller's. Enqueues and claims obey the limits once it commits. Setting
--   `max_waiting` counts all jobs that wait in the queue.
-- Locks: the settings lock and the table of limits, until the transaction ends; only calls that
--   change settings of queues wait for it.
-- See: docs/howto/limits.md
create function forebay.limit_queue(
    queue text, max_waiting bigint default null, rate double precision default null, burst integer default null,
    concurrency integer default null, key_rate double precision default null, key_burst integer default null,
    key_concurrency integer default null, remove text[] default '{}', max_waiting_group text default null)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_names   constant text[] := '{max_waiting,max_waiting_group,rate,burst,concurrency,key_rate,key_burst,key_concurrency}';
    v_remove  text[] := coalesce(limit_queue.remove, '{}');
    v_given   forebay.queue_limits;
    v_before  forebay.queue_limits;
    v_after   forebay.queue_limits;
    v_problem text;
begin
    v_given := row(limit_queue.queue, limit_queue.max_waiting, limit_queue.rate, limit_queue.burst, limit_queue.concurrency,
                   limit_queue.key_rate, limit_queue.key_burst, limit_queue.key_concurrency, null, limit_queue.max_waiting_group);
    v_problem := case
        when (v_given.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true
            then format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(v_given.queue, 40)), 'null'))
        when v_given.max_waiting < 1 then format('max_waiting %s is below 1', v_given.max_waiting)
        when (v_given.max_waiting_group ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is false
            then format('max_waiting_group %s is not a name: letters, digits and _ . : - only, at most 128', quote_literal(left(v_given.max_waiting_group, 40)))
        when v_given.rate not between 0.000001 and 1000000 then format('rate %s is outside 0.000001 to 1000000 per second', v_given.rate)
        when v_given.burst not between 1 and 1000000 then format('burst %s is outside 1 to 1000000', v_given.burst)
        when v_given.concurrency not between 1 and 1000000 then format('concurrency %s is outside 1 to 1000000', v_given.concurrency)
        when v_given.key_rate not between 0.000001 and 1000000 then format('key_rate %s is outside 0.000001 to 1000000 per second', v_given.key_rate)
        when v_given.key_burst not between 1 and 1000000 then format('key_burst %s is outside 1 to 1000000', v_given.key_burst)
        when v_given.key_concurrency not between 1 and 1000000 then format('key_concurrency %s is outside 1 to 1000000', v_given.key_concurrency)
        when not v_remove <@ (v_names || 'all'::text) then (
            select format('remove has %s, which is none of %s, all', coalesce(quote_literal(left(r.name, 40)), 'null'), array_to_string(v_names, ', '))
            from unnest(v_remove) r (name) where (r.name = any (v_names || 'all'::text)) is not true limit 1) end;
    if v_problem is null then
        perform forebay._lock_settings();
        -- Two calls that change different limits of a queue must both count.
        lock table forebay.queue_limits in share row exclusive mode;
        -- A call of limit_key() holds the row: whether keys have limits is read after it has committed.
        select l.* into v_before from forebay.queue_limits l where l.queue = v_given.queue for update;
        v_remove := case when 'all' = any (v_remove) then v_names
                         else v_remove || case when 'max_waiting' = any (v_remove) then '{max_waiting_group}'::text[] end
                                       || case when 'rate' = any (v_remove) then '{burst}'::text[] end
                                       || case when 'key_rate' = any (v_remove) then '{key_burst}'::text[] end end;
        v_after.queue := v_given.queue;
        v_after.starts_set_at := v_before.starts_set_at;
        v_after.max_waiting := coalesce(v_given.max_waiting, case when 'max_waiting' <> all (v_remove) then v_before.max_waiting end);
        v_after.max_waiting_group := nullif(coalesce(
            v_given.max_waiting_group, case when 'max_waiting_group' <> all (v_remove) then v_before.max_waiting_group end), 'default');
        v_after.rate := coalesce(v_given.rate, case when 'rate' <> all (v_remove) then v_before.rate end);
        v_after.burst := coalesce(v_given.burst, case when 'burst' <> all (v_remove) then v_before.burst end);
        v_after.concurrency := coalesce(v_given.concurrency, case when 'concurrency' <> all (v_remove) then v_before.concurrency end);
        v_after.key_rate := coalesce(v_given.key_rate, case when 'key_rate' <> all (v_remove) then v_before.key_rate end);
        v_after.key_burst := coalesce(v_given.key_burst, case when 'key_burst' <> all (v_remove) then v_before.key_burst end);
        v_after.key_concurrency := coalesce(v_given.key_concurrency, case when 'key_concurrency' <> all (v_remove) then v_before.key_concurrency end);
        v_problem := case
            when v_after.max_waiting_group is not null and v_after.max_waiting is null
                then format('max_waiting_group %s without a max_waiting', v_after.max_waiting_group)
            when v_after.burst is not null and v_after.rate is null then format('burst %s without a rate', v_after.burst)
            when v_after.key_burst is not null and v_after.key_rate is null then format('key_burst %s without a key_rate', v_after.key_burst) end;
    end if;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was changed. See the function forebay.limit_queue in the reference.';
    end if;

    if row(v_after.rate, v_after.burst, v_after.concurrency, v_after.key_rate, v_after.key_burst, v_after.key_concurrency)
       is distinct from
       row(v_before.rate, v_before.burst, v_before.concurrency, v_before.key_rate, v_before.key_burst, v_before.key_concurrency) then
        v_after.starts_set_at := case
            when num_nonnulls(v_after.rate, v_after.concurrency, v_after.key_rate, v_after.key_concurrency) > 0
                 or exists (select from forebay.key_limits i where i.queue = v_given.queue) then forebay._now() end;
    end if;
    if v_after.starts_set_at is not null then
        perform nextval('forebay.limiter_seq');
    end if;
    if v_after.max_waiting is not null then
        perform nextval('forebay.limit_seq'), setval('forebay.lane_secret', pg_sequence_last_value('forebay.lane_secret') | 1);
    end if;
    if num_nonnulls(v_after.max_waiting, v_after.starts_set_at) = 0 then
        delete from forebay.queue_limits l where l.queue = v_given.queue;
    else
        insert into forebay.queue_limits select v_after.*
        on conflict on constraint queue_limits_pkey do update
        set max_waiting = excluded.max_waiting, max_waiting_group = excluded.max_waiting_group, rate = excluded.rate, burst = excluded.burst, concurrency = excluded.concurrency,
            key_rate = excluded.key_rate, key_burst = excluded.key_burst, key_concurrency = excluded.key_concurrency,
            starts_set_at = excluded.starts_set_at;
    end if;
    if v_after.max_waiting is not null
       and (v_after.max_waiting, v_after.max_waiting_group) is distinct from (v_before.max_waiting, v_before.max_waiting_group) then
        -- The first count visits all waiting jobs; enqueues continue from it.
        perform forebay._waiting(v_given.queue, forebay._waiting_group(v_given.queue, v_after.max_waiting_group), -1, 0);
    end if;
    if v_after.starts_set_at is distinct from v_before.starts_set_at then
        -- Jobs may be parked while nothing is left to claim. A recheck row of no key brings a claim, which gives the keys their turns.
        perform forebay._announce_limit_keys(
            forebay._record_limited_lane(v_given.queue, l.priority, g.group_id), array[''], null)
        from forebay.queue_group g
        cross join lateral (select i.priority from forebay.lane i where i.queue = g.queue and i.sort = 'limited' limit 1) l
        where g.queue = v_given.queue;
        perform forebay._notify(v_given.queue);
    end if;
    if to_jsonb(v_after) - 'starts_set_at' <> to_jsonb(v_before) - 'starts_set_at' then
        perform forebay._record_event(
            'queues.limit', v_given.queue, p_old => jsonb_strip_nulls(to_jsonb(v_before) - '{queue,starts_set_at}'::text[]),
            p_new => jsonb_strip_nulls(to_jsonb(v_after) - '{queue,starts_set_at}'::text[]));
    end if;
    return case when num_nonnulls(v_before.max_waiting, v_before.rate, v_before.concurrency, v_before.key_rate, v_before.key_concurrency) > 0
                then to_jsonb(v_before) - '{queue,starts_set_at}'::text[] end;
end
$$;
