-- grant: operator

-- Set the maximum number of attempts of a queue's jobs, 1 to 10,000; null removes it. Returns the
-- previous number, null for none. A job's own maximum comes first, then that of its queue, then
-- that of its kind. Failures that are settled after the commit go by it, of waiting and running
-- jobs too. Dead letters stay. The table `forebay.queue_attempts` has all.
--
-- Errors: JQ001 a bad name or number, or a queue of Forebay, whose handlers decide.
-- Locks: the settings lock and the queue's row in the table, until the transaction ends; neither claims nor settlements
--   wait for it.
-- See: docs/howto/manage-queues.md#change-the-number-of-attempts
create function forebay.set_max_attempts(queue text, attempts integer default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_before integer;
begin
    if (set_max_attempts.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' and not starts_with(set_max_attempts.queue, 'forebay.')) is not true
       or set_max_attempts.attempts not between 1 and 10000 then
        raise exception using errcode = 'JQ001',
            message = format('cannot give jobs of queue %s %s attempts', coalesce(quote_literal(left(set_max_attempts.queue, 40)), 'null'),
                             coalesce(set_max_attempts.attempts::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only, and do not begin with forebay.; the number is 1 to 10000.';
    end if;
    perform forebay._lock_settings();
    v_before := forebay._queue_attempts(set_max_attempts.queue);
    if v_before is not distinct from set_max_attempts.attempts then
        return v_before;
    end if;
    if pg_sequence_last_value('forebay.queue_attempts_seq') is null then
        perform nextval('forebay.queue_attempts_seq');
    end if;
    delete from forebay.queue_attempts a where a.queue = set_max_attempts.queue and set_max_attempts.attempts is null;
    insert into forebay.queue_attempts (queue, max_attempts)
    select set_max_attempts.queue, set_max_attempts.attempts where set_max_attempts.attempts is not null
    on conflict on constraint queue_attempts_pkey do update set max_attempts = excluded.max_attempts;
    perform forebay._record_event('queues.max_attempts', queue, p_old => to_jsonb(v_before), p_new => to_jsonb(attempts));
    return v_before;
end
$$;
