-- The bell of a queue.
create function forebay._bell(p_queue text) returns regclass
language sql stable
as $$
    select (array[
        'forebay.bell_0', 'forebay.bell_1', 'forebay.bell_2', 'forebay.bell_3', 'forebay.bell_4', 'forebay.bell_5', 'forebay.bell_6', 'forebay.bell_7',
        'forebay.bell_8', 'forebay.bell_9', 'forebay.bell_10', 'forebay.bell_11', 'forebay.bell_12', 'forebay.bell_13', 'forebay.bell_14', 'forebay.bell_15']::regclass[])[(hashtext(p_queue) & 15) + 1]
$$;


-- Does somebody sleep who wants to be woken for the queue?
create function forebay._is_awaited(p_queue text) returns boolean
language sql volatile
as $$
    select coalesce(pg_sequence_last_value(forebay._bell(p_queue)), 0) > date_part('epoch', clock_timestamp()) * 1000
$$;


-- May a transaction notify, if somebody waits for it?
--
-- Only while the notification queue is nearly empty: when it is full, every transaction that notifies fails. Not
-- where transactions can be prepared: one that has notified cannot be, and whether somebody waits must not decide
-- over a producer's commit. The parameter forebay.bell, on or off, overrides that for a server, a database, a role or a
-- session.
create function forebay._may_notify() returns boolean
language sql volatile
as $$
    select coalesce(nullif(current_setting('forebay.bell', true), '') = 'on',
                    current_setting('max_prepared_transactions') = '0')
           and pg_notification_queue_usage() < 0.25
$$;


-- Wake a sleeping worker of the queue when this transaction commits.
--
-- Only while somebody sleeps: NOTIFY takes a database-wide lock at commit. The bell shortens the wait and guarantees
-- nothing; workers poll.
create function forebay._ring(p_queue text) returns void
language plpgsql volatile
as $$
begin
    if forebay._is_awaited(p_queue) and forebay._may_notify() then
        perform pg_notify('forebay_bell', p_queue);
    end if;
end
$$;
