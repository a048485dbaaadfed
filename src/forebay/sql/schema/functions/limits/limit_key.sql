-- grant: operator

-- Set limits of one limit key, for all groups of the queue. They replace the queue's limits for
-- each key: `rate` replaces `key_rate` and `key_burst`, `concurrency` replaces `key_concurrency`.
-- The queue needs no limits itself. Null leaves a limit unchanged. Returns the previous limits of
-- the key, null for none. Waiting jobs of the key are checked again at once; running jobs count.
--
-- Parameters:
--   rate         how many start per second, 0.000001 to 1000000
--   burst        how many may start at once after an idle time, 1 to 1000000; unset: what the rate
--                allows in one second, at least 1. Only with a rate
--   concurrency  how many run at once, 1 to 1000000
--   remove       first remove the key's own limits, then set the given ones
--
-- Errors: JQ001 a bad name, key or number, a burst without a rate, or no limit and no `remove`.
-- Transaction: the caller's. Claims obey the limits once it commits.
-- Locks: the settings lock, the row of the key, the row of the queue's limits (shared; with `remove` exclusive,
--   so that other changes of this queue's limits wait), and the table `queue_group` in ROW
--   EXCLUSIVE, which makes only the opening of new groups wait, until the transaction ends; claims
--   do not wait.
-- See: docs/howto/limits.md#give-one-customer-other-limits
--
-- Inside: Invariants "no more at once", "no more per second", "no key is forgotten"
-- (docs/design/limits.md).
create function forebay.limit_key(
    queue text, limit_key text, rate double precision default null, burst integer default null, concurrency integer default null,
    remove boolean default false)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_before  forebay.key_limits;
    v_kept    forebay.key_limits;
    v_old     jsonb;
    v_new     jsonb;
    v_problem text;
begin
    perform forebay._require_key(limit_key.queue, null, limit_key.limit_key);
    v_problem := case
        when limit_key.rate not between 0.000001 and 1000000 then format('rate %s is outside 0.000001 to 1000000 per second', limit_key.rate)
        when limit_key.burst not between 1 and 1000000 then format('burst %s is outside 1 to 1000000', limit_key.burst)
        when limit_key.concurrency not between 1 and 1000000 then format('concurrency %s is outside 1 to 1000000', limit_key.concurrency)
        when num_nonnulls(limit_key.rate, limit_key.burst, limit_key.concurrency) = 0 and limit_key.remove is not true
            then 'neither rate, burst, concurrency nor remove is given' end;
    if v_problem is null then
        perform forebay._lock_settings();
        -- Before the row of the key, as a report that opens a breaker.
        if limit_key.remove then
            perform from forebay.queue_limits l where l.queue = limit_key.queue for update;
        else
            perform from forebay.queue_limits l where l.queue = limit_key.queue for share;
        end if;
        -- A row that limits nothing, or the one that is there, locked: of two calls for one key the later one sees what the first has set.
        v_before := forebay._lock_key_limits(
            limit_key.queue, limit_key.limit_key, num_nonnulls(limit_key.rate, limit_key.burst, limit_key.concurrency) > 0);
        if limit_key.remove is not true then
            v_kept := v_before;
        end if;
        v_kept.rate := coalesce(limit_key.rate, v_kept.rate);
        v_kept.burst := coalesce(limit_key.burst, v_kept.burst);
        v_kept.concurrency := coalesce(limit_key.concurrency, v_kept.concurrency);
        v_problem := case when v_kept.burst is not null and v_kept.rate is null then format('burst %s without a rate', v_kept.burst) end;
    end if;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was changed. See the function forebay.limit_key in the reference.';
    end if;
    if forebay._set_key_limits(limit_key.queue, limit_key.limit_key, v_kept.rate, v_kept.burst, v_kept.concurrency) then
        v_old := forebay._key_limit_facts(v_before);
        select forebay._key_limit_facts(i) into v_new from forebay.key_limits i where i.queue = limit_key.queue and i.key = limit_key.limit_key;
        perform forebay._record_event(
            'keys.limit', limit_key.queue, p_old => jsonb_build_object('limit_key', limit_key.limit_key) || v_old,
            p_new => jsonb_build_object('limit_key', limit_key.limit_key) || coalesce(v_new, '{}'));
    end if;
    if limit_key.remove then
        -- Without limits the claims of the queue need not pass the limiter. Other changes wait for the row, which is locked.
        update forebay.queue_limits l set starts_set_at = null
        where l.queue = limit_key.queue and num_nonnulls(l.rate, l.concurrency, l.key_rate, l.key_concurrency) = 0
          and l.starts_set_at is not null and not exists (select from forebay.key_limits i where i.queue = l.queue);
        delete from forebay.queue_limits l
        where l.queue = limit_key.queue and num_nonnulls(l.max_waiting, l.starts_set_at) = 0;
    end if;
    return nullif(forebay._key_limit_facts(v_before), '{}');
end
$$;


-- The limits that a key has itself.
create function forebay._key_limit_facts(p_limits forebay.key_limits) returns jsonb
language sql immutable
as $$
    select jsonb_strip_nulls(jsonb_build_object('rate', p_limits.rate, 'burst', p_limits.burst, 'concurrency', p_limits.concurrency))
$$;


-- Set the limits that a limit key has itself; all null: remove them. Returns whether that changed anything. While the breaker of the key is
-- open they are kept, and hold when it closes.
--
-- The caller has checked the name, the key and the numbers, and records the act.
-- Locks: as forebay.limit_key() without remove.
create function forebay._set_key_limits(
    p_queue text, p_key text, p_rate double precision, p_burst integer, p_concurrency integer)
returns boolean
language plpgsql volatile
as $$
declare
    v_before constant forebay.key_limits := forebay._lock_key_limits(p_queue, p_key, num_nonnulls(p_rate, p_burst, p_concurrency) > 0);
    v_new    forebay.key_limits := v_before;
begin
    v_new.rate := p_rate;
    v_new.burst := p_burst;
    v_new.concurrency := p_concurrency;
    return forebay._write_key_limits(v_before, v_new);
end
$$;


-- Let one job of a limit key start at p_probe_at, and one each p_seconds after it, one at a time, whatever the limits of the key; null: its
-- breaker is closed.
--
-- Locks: as forebay.limit_key() without remove, except for the settings lock.
create function forebay._set_key_probes(p_queue text, p_key text, p_seconds double precision, p_probe_at timestamptz) returns void
language plpgsql volatile
as $$
declare
    v_before constant forebay.key_limits := forebay._lock_key_limits(p_queue, p_key, p_seconds is not null);
    v_new    forebay.key_limits := v_before;
begin
    v_new.probe_seconds := p_seconds;
    v_new.empty_until := p_probe_at;
    perform forebay._write_key_limits(v_before, v_new);
end
$$;


-- The row of a limit key, locked. With p_makes there is one afterwards, and the queue passes the limiter: a call that removes the mark waits.
create function forebay._lock_key_limits(p_queue text, p_key text, p_makes boolean) returns forebay.key_limits
language plpgsql volatile
as $$
declare
    v_at     constant timestamptz := forebay._now();
    v_marked timestamptz;
    v_found  boolean := not p_makes;
    v_row    forebay.key_limits;
begin
    while not v_found loop
        select l.starts_set_at into v_marked from forebay.queue_limits l where l.queue = p_queue for share;
        v_found := found and v_marked is not null;
        if not v_found then
            perform nextval('forebay.limiter_seq');
            insert into forebay.queue_limits as l (queue, starts_set_at) values (p_queue, v_at)
            on conflict on constraint queue_limits_pkey do update set starts_set_at = coalesce(l.starts_set_at, excluded.starts_set_at);
        end if;
    end loop;
    if p_makes then
        insert into forebay.key_limits as i (queue, key, set_at, no) values (p_queue, p_key, v_at, 0)
        on conflict on constraint key_limits_pkey do update set key = i.key
        returning i.* into v_row;
    else
        select i.* into v_row from forebay.key_limits i where i.queue = p_queue and i.key = p_key for update;
    end if;
    return v_row;
end
$$;


-- Write a row of key_limits that is locked, and let claims look at the key if other limits hold now. Returns whether anything changed.
--
-- What an open breaker hides has no effect on claims, so it gets no new number: a claim would fill the bucket of the probes again.
create function forebay._write_key_limits(o forebay.key_limits, n forebay.key_limits) returns boolean
language plpgsql volatile
as $$
declare
    v_holds boolean := case when num_nonnulls(o.probe_seconds, n.probe_seconds) = 0
                            then (o.rate, o.burst, o.concurrency) is distinct from (n.rate, n.burst, n.concurrency)
                            else (o.probe_seconds, o.empty_until) is distinct from (n.probe_seconds, n.empty_until) end;
begin
    if n.queue is null then
        return false;
    end if;
    if num_nonnulls(n.rate, n.burst, n.concurrency, n.probe_seconds) = 0 then
        delete from forebay.key_limits i where i.queue = n.queue and i.key = n.key;
        v_holds := true;
    elsif n is not distinct from o then
        return false;
    else
        update forebay.key_limits i
        set rate = n.rate, burst = n.burst, concurrency = n.concurrency, probe_seconds = n.probe_seconds, empty_until = n.empty_until,
            set_at = case when v_holds then forebay._now() else i.set_at end,
            no = case when v_holds then nextval('forebay.key_limits_seq') else i.no end
        where i.queue = n.queue and i.key = n.key;
    end if;
    if v_holds then
        -- Jobs may be parked until a time that the earlier limits had set, or for a slot that is free under the new ones.
        perform forebay._announce_key(n.queue, 'limit', n.key);
    end if;
    return true;
end
$$;
