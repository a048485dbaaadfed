-- grant: operator

-- Limit how many jobs of a queue may wait; returns the limit before, null for none.
--
-- Parameters: most, at least 1; null: no limit.
-- Errors: JQ001 a bad name or number.
create function forebay.limit_queue(queue text, most bigint default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_before bigint;
begin
    if (limit_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true or limit_queue.most < 1 then
        raise exception using errcode = 'JQ001',
            message = format('cannot limit queue %s to %s jobs', coalesce(quote_literal(left(limit_queue.queue, 40)), 'null'),
                             coalesce(limit_queue.most::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only; the number is at least 1, or null for no limit.';
    end if;
    select l.most into v_before from forebay.queue_limit l where l.queue = limit_queue.queue;
    if limit_queue.most is null then
        delete from forebay.queue_limit l where l.queue = limit_queue.queue;
        return v_before;
    end if;
    perform nextval('forebay.limit_seq');
    insert into forebay.queue_limit (queue, most) values (limit_queue.queue, limit_queue.most)
    on conflict on constraint queue_limit_pkey do update set most = excluded.most;
    -- The first count visits all that waits; enqueues go on from it.
    perform forebay._waiting(limit_queue.queue, g.group_id, -1, 0)
    from forebay.queue_group g where g.queue = limit_queue.queue;
    return v_before;
end
$$;
