-- grant: operator, reader

-- The flows that wait for a signal with this key, under whatever name, of the first 100 names. If a signal
-- was sent under a wrong name, this finds the right one.
--
-- Columns:
--   name   what the flow waits for, as in `ctx.wait(name)`
--   since  when the wait began
--
-- Transaction: the caller's; reads only.
-- See: docs/howto/steps.md#signals
-- pages: 20 + 6 a name
create function forebay.signal_waits(key text)
returns table (name text, job_id bigint, since timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    with recursive each as (
        (select w.name from forebay.waiter w order by w.name limit 1)
        union all
        select n.name from each e, lateral (select w.name from forebay.waiter w where w.name > e.name order by w.name limit 1) n)
    select w.name, w.job_id, w.since
    from (select e.name from each e limit 100) e
    join forebay.waiter w on w.name = e.name and w.key = signal_waits.key and forebay._parked_row(w.job_id, w.group_id) is not null
    order by w.name
$$;
