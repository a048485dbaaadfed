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
        if num_nonnulls(limit_key.rate, limit_key.burst, limit_key.concurrency) > 0 then
            -- A row that limits nothing, or the one that is there, locked: of two calls for one key the later one sees what the first has set.
            insert into forebay.key_limits as i (queue, key, set_at, no) values (limit_key.queue, limit_key.limit_key, forebay._now(), 0)
            on conflict on constraint key_limits_pkey do update set key = i.key
            returning i.* into v_before;
        else
            select i.* into v_before from forebay.key_limits i where i.queue = limit_key.queue and i.key = limit_key.limit_key for update;
        end if;
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
    select jsonb_strip_nulls(jsonb_build_object('rate', p_limits.rate, 'burst', p_limits.burst, 'concurrency', p_limits.concurrency,
                                                'empty_until', p_limits.empty_until))
$$;


-- Set all limits of one limit key of a queue; all null: remove them. Returns whether that changed anything.
--
-- p_empty_until: the bucket of the key has no token before, and one then. It needs a rate, here or of the queue.
-- The caller has checked the name, the key and the numbers, and records the act.
-- Locks: as forebay.limit_key() without remove.
create function forebay._set_key_limits(
    p_queue text, p_key text, p_rate double precision, p_burst integer, p_concurrency integer, p_empty_until timestamptz default null)
returns boolean
language plpgsql volatile
as $$
declare
    v_at     constant timestamptz := forebay._now();
    v_marked timestamptz;
    v_found  boolean := false;
begin
    if num_nonnulls(p_rate, p_burst, p_concurrency, p_empty_until) = 0 then
        delete from forebay.key_limits i where i.queue = p_queue and i.key = p_key;
        if not found then
            return false;
        end if;
    else
        -- The queue passes the limiter while it has rows here: a call that removes the mark waits for this one.
        while not v_found loop
            select l.starts_set_at into v_marked from forebay.queue_limits l where l.queue = p_queue for share;
            v_found := found and v_marked is not null;
            if not v_found then
                perform nextval('forebay.limiter_seq');
                insert into forebay.queue_limits as l (queue, starts_set_at) values (p_queue, v_at)
                on conflict on constraint queue_limits_pkey do update set starts_set_at = coalesce(l.starts_set_at, excluded.starts_set_at);
            end if;
        end loop;
        insert into forebay.key_limits as i (queue, key, rate, burst, concurrency, empty_until, set_at, no)
        values (p_queue, p_key, p_rate, p_burst, p_concurrency, p_empty_until, v_at, nextval('forebay.key_limits_seq'))
        on conflict on constraint key_limits_pkey do update
        set rate = excluded.rate, burst = excluded.burst, concurrency = excluded.concurrency, empty_until = excluded.empty_until,
            set_at = excluded.set_at, no = excluded.no
        where (i.rate, i.burst, i.concurrency, i.empty_until)
              is distinct from (excluded.rate, excluded.burst, excluded.concurrency, excluded.empty_until);
        if not found then
            return false;
        end if;
    end if;
    -- Jobs may be parked until a time that the earlier limits had set, or for a slot that is free under the new ones.
    perform forebay._announce_key(p_queue, 'limit', p_key);
    return true;
end
$$;
