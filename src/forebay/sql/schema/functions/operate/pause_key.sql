-- grant: operator

-- Stop claiming jobs of one key of a queue, for all groups. Claimed jobs finish; enqueueing
-- continues. Waiting jobs keep their places and use no attempt. A key has one pause: a call
-- replaces the one that lasts or is planned, so to plan a pause of a paused key resumes it until
-- then. Returns whether something changed.
--
-- Parameters:
--   ordering_key, limit_key  exactly one of them
--   pause_at                 when the pause begins; null or past: now
--   resume_after             how long it lasts; null: until forebay.resume_key()
--
-- Errors: JQ001 not exactly one key, or a bad name, key or time.
-- Locks: the row of the key, and the table `queue_group` in ROW EXCLUSIVE, which makes only the
--   opening of new groups wait, until the transaction ends; claims do not wait.
-- See: docs/howto/limits.md#pause-one-customer
--
-- Inside: Invariant "a paused key is not forgotten" (docs/design/limits.md).
create function forebay.pause_key(
    queue text, ordering_key text default null, limit_key text default null, resume_after interval default null,
    pause_at timestamptz default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_sort   constant text := forebay._require_key(pause_key.queue, pause_key.ordering_key, pause_key.limit_key);
    v_key    constant text := coalesce(pause_key.ordering_key, pause_key.limit_key);
    v_at     constant timestamptz := forebay._now();
    v_begins constant timestamptz := case when pause_at > v_at then pause_at end;
    v_until  timestamptz;
    v_change jsonb;
begin
    if resume_after <= interval '0' or resume_after > interval '10 years' then
        raise exception using errcode = 'JQ001', column = 'resume_after',
            message = format('resume_after %s is not within ten years', resume_after);
    end if;
    if pause_at > v_at + interval '10 years' or pause_at < v_at - interval '10 years' then
        raise exception using errcode = 'JQ001', column = 'pause_at', message = format('pause_at %s is not within ten years', pause_at);
    end if;
    v_until := coalesce(pause_at, v_at) + resume_after;
    if v_until <= v_at then
        raise exception using errcode = 'JQ001', column = 'pause_at', message = format('the pause from %s would be over by now', pause_at);
    end if;
    v_change := forebay._set_key_pause(pause_key.queue, v_sort, v_key, v_begins, v_until, v_at);
    if v_change is null then
        return false;
    end if;
    perform forebay._record_event('keys.pause', pause_key.queue, p_old => nullif(v_change -> 'old', 'null'), p_new => v_change -> 'new');
    return true;
end
$$;


-- Pause a key, or plan it; returns the pause before (or null) and the one now, as the event log has them; null if nothing changes.
create function forebay._set_key_pause(
    p_queue text, p_sort text, p_key text, p_begins timestamptz, p_until timestamptz, p_at timestamptz)
returns jsonb
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_before  forebay.key_pause;
    v_was_set boolean;     -- a pause lasts, or is planned
    v_was_paused boolean;  -- it lasts
begin
    perform nextval('forebay.key_pause_seq');
    if p_sort = 'limit' and pg_sequence_last_value('forebay.limiter_seq') is null then
        perform nextval('forebay.limiter_seq');  -- Jobs with an ordering key too may be the only ones with limit keys.
    end if;
    -- A row that pauses nothing, or the one that is there, locked: of two calls for one key the later one sees what the first has set.
    insert into forebay.key_pause as p (queue, sort, key, paused_at, resume_at) values (p_queue, p_sort, p_key, p_at, p_at)
    on conflict on constraint key_pause_pkey do update set key = p.key
    returning p.* into v_before;
    v_was_set := coalesce(v_before.resume_at > p_at, true);
    v_was_paused := v_was_set and coalesce(v_before.begins_at <= p_at, true);
    if v_was_set and v_before.resume_at is not distinct from p_until
       and (v_was_paused and p_begins is null or v_before.begins_at = p_begins) then
        return null;
    end if;
    update forebay.key_pause p
    set begins_at = p_begins, resume_at = p_until,
        paused_at = case when v_was_paused and p_begins is null then coalesce(v_before.begins_at, v_before.paused_at) else p_at end
    where p.queue = p_queue and p.sort = p_sort and p.key = p_key;
    delete from forebay.key_pause p
    where (p.queue, p.sort, p.key) in (
        select i.queue, i.sort, i.key from forebay.key_pause i
        where i.resume_at <= p_at order by i.resume_at limit 10 for update skip locked);
    if v_was_set then
        -- Claims have parked jobs until the end of the earlier pause. They look again, and schedule a recheck row for the new end.
        -- A planned pause that is replaced may begin before this transaction commits.
        perform forebay._announce_key(p_queue, p_sort, p_key);
    end if;
    return jsonb_build_object(
        'old', case when v_was_set then forebay._pause_facts(p_sort, p_key, v_before.begins_at, v_before.resume_at) end,
        'new', forebay._pause_facts(p_sort, p_key, p_begins, p_until));
end
$$;


-- A pause of a key, as the event log has it.
create function forebay._pause_facts(p_sort text, p_key text, p_begins_at timestamptz, p_resume_at timestamptz) returns jsonb
language sql immutable
as $$
    select jsonb_build_object(p_sort || '_key', p_key, 'resume_at', p_resume_at)
           || case when p_begins_at is null then '{}' else jsonb_build_object('pause_at', p_begins_at) end
$$;


-- Is exactly one key named, of a queue? Returns its sort.
create function forebay._require_key(p_queue text, p_ordering_key text, p_limit_key text) returns text
language plpgsql stable
as $$
declare
    v_problem text := case
        when (p_queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true
            then format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(p_queue, 40)), 'null'))
        when num_nonnulls(p_ordering_key, p_limit_key) <> 1 then 'exactly one of ordering_key and limit_key is needed'
        when length(coalesce(p_ordering_key, p_limit_key)) not between 1 and 200
            then format('the key %s must have 1 to 200 characters', quote_literal(left(coalesce(p_ordering_key, p_limit_key), 40))) end;
begin
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Name the key as its jobs were enqueued: ordering_key => or limit_key =>.';
    end if;
    return case when p_ordering_key is not null then 'ordering' else 'limit' end;
end
$$;


-- Make the claims of every group of a queue look at a key again: append a recheck row of the key for each group.
--
-- Whether jobs of the key wait is not looked at: that would need the locks of the claims' decisions, and an operator's transaction may
-- be open for long. A claim in progress has a snapshot older than these rows, so the next one reads them, after what the first parked.
-- A group that is opened now would not have a row: it waits for the end of this transaction. A job that is enqueued now may be the first one
-- with a key: the row is written even if no lane is known yet.
create function forebay._announce_key(p_queue text, p_sort text, p_key text) returns void
language plpgsql volatile
as $$
declare
    v_group record;
begin
    lock table forebay.queue_group in row exclusive mode;
    for v_group in
        select g.group_id, l.priority
        from forebay.queue_group g
        cross join lateral (select coalesce(min(i.priority), 100) as priority from forebay.lane i
                            where i.queue = g.queue and i.sort = case p_sort when 'ordering' then 'keyed' else 'limited' end) l
        where g.queue = p_queue and g.closing_at is null
    loop
        if p_sort = 'ordering' then
            perform forebay._announce_keys(p_queue, v_group.priority, v_group.group_id, array[p_key]);
        else
            perform forebay._announce_limit_keys(
                forebay._record_limited_lane(p_queue, v_group.priority, v_group.group_id), array[p_key], null);
        end if;
    end loop;
    perform forebay._notify(p_queue);
end
$$;
