-- The wake-up sequence of a queue.
create function forebay._wakeup(p_queue text) returns regclass
language sql stable
as $$
    select (array[
        'forebay.wakeup_0', 'forebay.wakeup_1', 'forebay.wakeup_2', 'forebay.wakeup_3', 'forebay.wakeup_4', 'forebay.wakeup_5', 'forebay.wakeup_6', 'forebay.wakeup_7',
        'forebay.wakeup_8', 'forebay.wakeup_9', 'forebay.wakeup_10', 'forebay.wakeup_11', 'forebay.wakeup_12', 'forebay.wakeup_13', 'forebay.wakeup_14', 'forebay.wakeup_15']::regclass[])[(hashtext(p_queue) & 15) + 1]
$$;


-- Is the time of a flag sequence, in milliseconds since 1970, still to come? A worker sleeps, or a caller waits, until then.
--
-- At most for about a minute: a time further in the future was written before the clock was set back.
create function forebay._is_ahead(p_millis bigint) returns boolean
language sql volatile
-- The parameter stands here once, so that the function is inlined.
as $$ select coalesce(abs(p_millis - date_part('epoch', clock_timestamp()) * 1000 - 35000) < 35000, false) $$;


-- Set a flag sequence to a value, or less than one step beyond it; p_step is its increment.
--
-- A few steps forward are nextval(): it writes WAL, and draws a transaction id, at one call in 33 and at the first one after a
-- checkpoint; setval() does at every call. A crash sets the flag up to 32 steps ahead. Not for a session of the user: nextval()
-- changes its lastval().
create function forebay._advance_flag(p_flag regclass, p_value bigint, p_step bigint) returns void
language plpgsql volatile
as $$
declare
    v_steps constant bigint := (p_value - pg_sequence_last_value(p_flag) + p_step - 1) / p_step;
begin
    if v_steps between 1 and 32 then
        perform nextval(p_flag) from generate_series(1, v_steps);
    elsif v_steps = 0 then
        return;  -- It is there already.
    else
        perform setval(p_flag, p_value);
    end if;
end
$$;


-- Does a worker that serves the queue sleep?
create function forebay._is_awaited(p_queue text) returns boolean
language sql volatile
as $$
    select forebay._is_ahead(pg_sequence_last_value(forebay._wakeup(p_queue)))
$$;


-- May a transaction notify when a worker waits?
--
-- Only while the notification queue is nearly empty: when it is full, every transaction that notifies fails. Not where
-- transactions can be prepared: a transaction that has notified cannot be, and a waiting worker must not decide over a
-- producer's commit. The parameter forebay.wakeup, on or off, overrides this for a server, a database, a role or a
-- session.
create function forebay._may_notify() returns boolean
language sql volatile
as $$
    select coalesce(nullif(current_setting('forebay.wakeup', true), '') = 'on',
                    current_setting('max_prepared_transactions') = '0')
           and pg_notification_queue_usage() < 0.25
$$;


-- Wake a sleeping worker of the queue when this transaction commits.
--
-- Only while a worker sleeps: NOTIFY takes a database-wide lock at commit. The wake-up shortens the wait and guarantees
-- nothing; workers poll.
create function forebay._notify(p_queue text) returns void
language plpgsql volatile
as $$
begin
    if forebay._is_awaited(p_queue) and forebay._may_notify() then
        perform pg_notify('forebay_wakeup', p_queue);
    end if;
end
$$;


-- Wake the leader of maintenance when this transaction commits, if a job that was added is due before it looks for due jobs again.
--
-- As forebay._notify(), it shortens the wait and guarantees nothing.
create function forebay._announce_due(p_run_at timestamptz) returns void
language plpgsql volatile
as $$
declare
    v_until constant bigint := pg_sequence_last_value('forebay.promoter_seq');
begin
    if forebay._is_ahead(v_until) and date_part('epoch', p_run_at) * 1000 <= v_until and forebay._may_notify() then
        perform pg_notify('forebay_wakeup', '@due');
    end if;
end
$$;
