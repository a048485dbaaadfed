-- grant: operator

-- Give up the order of a queue's jobs: new ones are spread over so many lanes of each priority, so that claims of
-- different workers need not take turns. 1 keeps the order again, for jobs enqueued from then on. What waits stays where
-- it is. Returns the number before.
--
-- Parameters: lanes, 1 to 64; about as many as worker processes claim at once.
-- Errors: JQ001 a bad name or number.
create function forebay.spread_queue(queue text, lanes integer) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before integer := forebay._spread_of(queue);
begin
    if (spread_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' and spread_queue.lanes between 1 and 64) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot spread queue %s over %s lanes', coalesce(quote_literal(left(spread_queue.queue, 40)), 'null'),
                             coalesce(spread_queue.lanes::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only; the number is 1 to 64.';
    end if;
    perform nextval('forebay.spread_seq') where spread_queue.lanes > 1;
    insert into forebay.spread (queue, lanes) values (spread_queue.queue, spread_queue.lanes)
    on conflict on constraint spread_pkey do update set lanes = excluded.lanes;
    return v_before;
end
$$;
