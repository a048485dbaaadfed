-- grant: operator

-- Switch on or off that a queue sends notices of changes on the channel `forebay_events`, from the
-- commit on; returns whether it did before. A notice is JSON and has names of queue and group, ids
-- of jobs, and words of Forebay. Every role that can connect to the database can listen. The table
-- `forebay.queue_notices` has the queues that send them.
--
-- Errors: JQ001 a bad name, or null.
-- Locks: the settings lock and the queue's row in the table, until the transaction ends; neither claims nor settlements
--   wait for it.
-- See: docs/howto/notices.md
create function forebay.set_notices(queue text, enabled boolean) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_before boolean;
begin
    if (set_notices.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true or set_notices.enabled is null then
        raise exception using errcode = 'JQ001', column = case when set_notices.enabled is null then 'enabled' else 'queue' end,
            message = format('cannot switch notices of queue %s to %s', coalesce(quote_literal(left(set_notices.queue, 40)), 'null'),
                             coalesce(set_notices.enabled::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only, at most 128; enabled is true or false.';
    end if;
    perform forebay._lock_settings();
    v_before := exists (select from forebay.queue_notices n where n.queue = set_notices.queue);
    if v_before = set_notices.enabled then
        return v_before;
    end if;
    if pg_sequence_last_value('forebay.notices_seq') is null then
        perform nextval('forebay.notices_seq');
    end if;
    -- The act is announced in both directions: while the row is there.
    insert into forebay.queue_notices (queue) values (set_notices.queue) on conflict do nothing;
    perform forebay._record_event('queues.notices', queue, p_old => to_jsonb(v_before), p_new => to_jsonb(enabled));
    delete from forebay.queue_notices n where n.queue = set_notices.queue and not set_notices.enabled;
    return v_before;
end
$$;
