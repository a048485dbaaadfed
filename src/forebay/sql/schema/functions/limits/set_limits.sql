-- grant: operator

-- Set the pace of a queue: how many of its jobs run at once and how many start per second, in all and of each limit key. What
-- is not given has no limit; nothing given, the queue has no pace any more. Returns the pace before, null for none.
--
-- Each group of the queue has its own. It holds from the next claim on; what runs goes on, and counts.
--
-- Parameters: concurrency, key_concurrency, at least 1; rate, key_rate, starts per second, also below 1; burst, key_burst, how
--   many may start at once after a rest: null, what comes in a second, at least 1.
-- Errors: JQ001 a bad name or number.
create function forebay.pace_queue(
    queue text, concurrency integer default null, rate double precision default null, burst integer default null,
    key_concurrency integer default null, key_rate double precision default null, key_burst integer default null)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_before  jsonb;
    v_problem text;
begin
    v_problem := case
        when (pace_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true
            then format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(pace_queue.queue, 40)), 'null'))
        when pace_queue.concurrency not between 1 and 1000000 then format('concurrency %s is outside 1 to 1000000', pace_queue.concurrency)
        when pace_queue.key_concurrency not between 1 and 1000000 then format('key_concurrency %s is outside 1 to 1000000', pace_queue.key_concurrency)
        when pace_queue.rate not between 0.000001 and 1000000 then format('rate %s is outside 0.000001 to 1000000 per second', pace_queue.rate)
        when pace_queue.key_rate not between 0.000001 and 1000000 then format('key_rate %s is outside 0.000001 to 1000000 per second', pace_queue.key_rate)
        when pace_queue.burst not between 1 and 1000000 then format('burst %s is outside 1 to 1000000', pace_queue.burst)
        when pace_queue.key_burst not between 1 and 1000000 then format('key_burst %s is outside 1 to 1000000', pace_queue.key_burst)
        when pace_queue.burst is not null and pace_queue.rate is null then format('burst %s without a rate', pace_queue.burst)
        when pace_queue.key_burst is not null and pace_queue.key_rate is null then format('key_burst %s without a key_rate', pace_queue.key_burst) end;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was changed. See the function forebay.pace_queue in the reference.';
    end if;
    select to_jsonb(p) - 'queue' - 'set_at' into v_before from forebay.queue_pace p where p.queue = pace_queue.queue;
    if num_nonnulls(pace_queue.concurrency, pace_queue.rate, pace_queue.key_concurrency, pace_queue.key_rate) = 0 then
        delete from forebay.queue_pace p where p.queue = pace_queue.queue;
    else
        perform nextval('forebay.gate_seq');
        insert into forebay.queue_pace (queue, concurrency, rate, burst, key_concurrency, key_rate, key_burst, set_at)
        values (pace_queue.queue, pace_queue.concurrency, pace_queue.rate, pace_queue.burst, pace_queue.key_concurrency,
                pace_queue.key_rate, pace_queue.key_burst, forebay._now())
        on conflict on constraint queue_pace_pkey do update
        set concurrency = excluded.concurrency, rate = excluded.rate, burst = excluded.burst, key_concurrency = excluded.key_concurrency,
            key_rate = excluded.key_rate, key_burst = excluded.key_burst, set_at = excluded.set_at;
    end if;
    perform forebay._ring(pace_queue.queue);
    return v_before;
end
$$;
