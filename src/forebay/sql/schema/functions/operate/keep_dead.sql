-- grant: operator

-- Set how long dead letters are kept; returns the number of days before, null forever. Without this
-- call dead letters are kept forever. Maintenance deletes older ones in steps, redriven or not, and
-- counts what it deletes: see forebay.dead_summary().
--
-- Parameters:
--   queue    null: all queues without their own setting
--   days     since the death of the job, 1 to 36500; null: forever
--   inherit  remove the setting of the queue
--
-- Errors: JQ001 a bad name or number.
-- Locks: the settings lock, until the transaction ends.
create function forebay.keep_dead(queue text default null, days integer default null, inherit boolean default false) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue  constant text := coalesce(keep_dead.queue, '');
    v_before integer;
begin
    if keep_dead.queue !~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' or keep_dead.days not between 1 and 36500
       or keep_dead.inherit is null or (keep_dead.inherit and (keep_dead.days is not null or keep_dead.queue is null)) then
        raise exception using errcode = 'JQ001',
            message = format('cannot keep dead letters of queue %s for %s days%s', coalesce(quote_literal(left(keep_dead.queue, 40)), 'null'),
                             coalesce(keep_dead.days::text, 'null'), case when keep_dead.inherit then ', inherited' else '' end),
            hint = 'days is 1 to 36500, or null forever. inherit is for a queue, and without days.';
    end if;
    perform forebay._lock_settings();
    v_before := forebay._days_of_dead(v_queue);
    if keep_dead.inherit then
        delete from forebay.dead_retention r where r.queue = v_queue;
    else
        insert into forebay.dead_retention (queue, days) values (v_queue, keep_dead.days)
        on conflict on constraint dead_retention_pkey do update set days = excluded.days;
    end if;
    if v_before is distinct from forebay._days_of_dead(v_queue) then
        perform forebay._record_event('dead.keep', keep_dead.queue, p_old => jsonb_build_object('days', v_before),
                                      p_new => jsonb_build_object('days', forebay._days_of_dead(v_queue)));
    end if;
    return v_before;
end
$$;


-- How many days dead letters of a queue are kept; null: forever.
create function forebay._days_of_dead(p_queue text) returns integer
language sql stable
as $$
    select r.days from forebay.dead_retention r where r.queue in (p_queue, '') order by r.queue desc limit 1
$$;


-- Delete dead letters past the time set for them.
create function forebay._trim_dead_letters(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_queue record;
begin
    rows := 0;
    if not exists (select from forebay.dead_retention r where r.days is not null) then
        return;
    end if;
    for v_queue in
        with recursive queue as (
            (select d.queue from forebay.dead_letter d order by d.queue limit 1)
            union all
            select n.queue from queue q, lateral (
                select d.queue from forebay.dead_letter d where d.queue > q.queue order by d.queue limit 1) n
        )
        select q.queue, forebay._days_of_dead(q.queue) as days from queue q
    loop
        continue when v_queue.days is null;
        rows := rows + forebay._delete_dead(
            v_queue.queue, forebay._now() - make_interval(days => v_queue.days), (p_most - rows)::integer);
        exit when rows >= p_most;
    end loop;
    delete from forebay.dead_deletion c where c.died_on < forebay._now() - interval '400 days';
    next := case when rows >= p_most then '[]' end;
end
$$;


-- Delete and count at most p_most dead letters of a queue that died before a time, the oldest first; returns their number. A letter that holds its
-- key waits for an operator.
create function forebay._delete_dead(p_queue text, p_before timestamptz, p_most integer) returns bigint
language sql volatile
as $$
    select forebay._delete_letters(
        array(select i.dead_id from forebay.dead_letter i
              where i.queue = p_queue and i.died_at <= p_before and not i.holds_key
              order by i.died_at limit p_most for update skip locked),
        false)
$$;


-- Delete and count dead letters that the caller has locked; returns their number. p_ends_holds: the keys that they hold are free.
create function forebay._delete_letters(p_dead_ids bigint[], p_ends_holds boolean) returns bigint
language plpgsql volatile
as $$
declare
    v_count bigint;
begin
    if p_ends_holds then
        perform forebay._end_holds(p_dead_ids);
    end if;
    with gone as (
        delete from forebay.dead_letter d
        where d.dead_id = any (p_dead_ids)
        returning d.queue, d.kind, d.reason, d.died_at, d.errors, d.limit_key),
    sorts as (
        select (g.died_at at time zone 'UTC')::date as died_on, g.queue, g.kind, g.reason,
               coalesce(left(g.errors -> -1 ->> 'type', 200), '') as error_type,
               case when g.queue = 'forebay.deliver' then coalesce(g.limit_key, '') else '' end as endpoint, count(*) as deleted
        from gone g group by 1, 2, 3, 4, 5, 6),
    counted as (
        insert into forebay.dead_deletion as c (died_on, queue, kind, reason, error_type, endpoint, deleted)
        select s.died_on, s.queue, s.kind, s.reason, s.error_type, s.endpoint, s.deleted from sorts s
        order by 1, 2, 3, 4, 5, 6
        on conflict on constraint dead_deletion_pkey do update set deleted = c.deleted + excluded.deleted)
    select coalesce(sum(s.deleted), 0) into v_count from sorts s;
    return v_count;
end
$$;
