-- Breakers of limit keys: those of endpoints, and those that kinds declare. See "Breakers" in docs/design/limits.md.

-- Add to the breaker of a limit key what was found since the last report, and open it, close it, or let the next probe wait. Returns the
-- breaker before and after.
--
-- Invariants: "open after failures in a row", "one probe at a time". A success from before the breaker opened does not close it, and a
-- failure of a job that was claimed before the next probe could be is no probe's.
--
-- In the report: `failures`, those in a row at the end; `answered`, whether there was a success before them, and `answered_at`, when the
-- last one was, null: after; `claimed_at`, when the last job that failed was claimed, null: not known, and then a new interval only moves the
-- next probe; `threshold`, `cooldown`, `cooldown_max`, null: as before.
-- Locks: the row of the breaker, and as forebay.limit_key() without remove, except for the settings lock.
create function forebay._step_breaker(r forebay._breaker_report, p_at timestamptz, out before forebay.breaker, out after forebay.breaker)
language plpgsql volatile
as $$
declare
    v_answered boolean;
begin
    select b.* into before from forebay.breaker b where b.queue = r.queue and b.key = r.key for update;
    if not found then
        insert into forebay.breaker as b (queue, key, failures, threshold, cooldown, cooldown_max)
        values (r.queue, r.key, 0, r.threshold, r.cooldown, r.cooldown_max)
        on conflict on constraint breaker_pkey do update set key = b.key
        returning b.* into before;
    end if;
    after := before;
    after.threshold := coalesce(r.threshold, before.threshold);
    after.cooldown := coalesce(r.cooldown, before.cooldown);
    after.cooldown_max := greatest(coalesce(r.cooldown_max, before.cooldown_max), after.cooldown);
    v_answered := coalesce(r.answered, false) and coalesce(before.opened_at <= coalesce(r.answered_at, p_at), true);
    after.failures := least(coalesce(r.failures, 0) + case when v_answered then 0 else before.failures::bigint end, 1000000);
    if r.failures > 0 then
        after.failed_at := p_at;
        after.error := coalesce(left(r.error, 1000), before.error);
    end if;
    if before.opened_at is null then
        if after.failures >= after.threshold then
            after.opened_at := p_at;
            after.probes := 0;
            after.probe_at := p_at + forebay._probe_interval(after);
        end if;
    elsif v_answered and after.failures < after.threshold then
        after.opened_at := null;
        after.probe_at := null;
    elsif r.failures > 0 and coalesce(r.claimed_at, p_at) >= before.probe_at then
        after.probes := least(before.probes + 1, 1000000);
        after.probe_at := p_at + forebay._probe_interval(after);
    end if;

    if after.failures = 0 and after.opened_at is null then
        delete from forebay.breaker b where b.queue = r.queue and b.key = r.key;
    elsif after is distinct from before then
        update forebay.breaker b
        set failures = after.failures, threshold = after.threshold, cooldown = after.cooldown, cooldown_max = after.cooldown_max,
            opened_at = after.opened_at, probes = after.probes, probe_at = after.probe_at, failed_at = after.failed_at, error = after.error
        where b.queue = r.queue and b.key = r.key;
    end if;
    if after.opened_at is null and before.opened_at is not null then
        perform forebay._set_key_probes(r.queue, r.key, null, null);
    elsif after.opened_at is not null
          and (before.opened_at is null or forebay._probe_interval(after) <> forebay._probe_interval(before)
               or after.probe_at <> before.probe_at and r.claimed_at is not null) then
        perform forebay._set_key_probes(r.queue, r.key, extract(epoch from forebay._probe_interval(after))::double precision, after.probe_at);
    end if;
end
$$;


-- The time between two probes of an open breaker: doubled by each that failed, up to its maximum.
create function forebay._probe_interval(b forebay.breaker) returns interval
language sql immutable
as $$ select make_interval(secs => least(b.cooldown * power(2::double precision, least(b.probes, 40)), b.cooldown_max)) $$;


-- Close the breaker of a limit key, and forget its failures. Returns the breaker before; null: it had not failed.
--
-- Locks: as _step_breaker().
create function forebay._close_breaker(p_queue text, p_key text) returns forebay.breaker
language plpgsql volatile
as $$
declare
    v_was forebay.breaker;
begin
    delete from forebay.breaker b where b.queue = p_queue and b.key = p_key returning b.* into v_was;
    if v_was.opened_at is not null then
        perform forebay._set_key_probes(p_queue, p_key, null, null);
    end if;
    return v_was;
end
$$;


-- A breaker as the event log and forebay.keys() have it.
create function forebay._breaker_facts(b forebay.breaker) returns jsonb
language sql stable
as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'failures', b.failures, 'threshold', b.threshold, 'opened_at', b.opened_at, 'probes', case when b.opened_at is not null then b.probes end,
        'probe_at', b.probe_at, 'failed_at', b.failed_at, 'error', b.error))
$$;


-- Delete breakers of keys that have not failed for a day. An open one of which no probe came for a day is closed: no job of the key wants to
-- run. Those of endpoints stay.
--
-- Locks: all these breakers, then as forebay.limit_key() without remove, except for the settings lock.
create function forebay._trim_breakers(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_seen forebay.breaker[];
    v_gone forebay.breaker[];
begin
    v_seen := array(
        select i from forebay.breaker i
        where (i.queue, i.key) > (coalesce(p_after::jsonb ->> 0, ''), coalesce(p_after::jsonb ->> 1, ''))
        order by i.queue, i.key limit least(p_most, 500));
    with gone as (
        delete from forebay.breaker b
        where (b.queue, b.key) in (
            select i.queue, i.key from forebay.breaker i join unnest(v_seen) u on u.queue = i.queue and u.key = i.key
            where i.queue <> 'forebay.deliver' and coalesce(greatest(i.probe_at, i.failed_at) < forebay._now() - interval '1 day', true)
            order by i.queue, i.key for update of i skip locked)
        returning b.*)
    select coalesce(array_agg(g), '{}') into v_gone from gone g;
    perform forebay._set_key_probes(g.queue, g.key, null, null)
    from (select u.queue, u.key from unnest(v_gone) u where u.opened_at is not null order by u.queue, u.key) g;
    rows := cardinality(v_gone);
    if cardinality(v_seen) = least(p_most, 500) then
        next := jsonb_build_array(v_seen[cardinality(v_seen)].queue, v_seen[cardinality(v_seen)].key);
    end if;
end
$$;
