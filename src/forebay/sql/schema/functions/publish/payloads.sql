-- grant: worker

-- The events of deliveries: payload, headers and what else a message has. The parameters are arrays
-- of the two members of `event` in the arguments of a delivery; elements with one place belong
-- together. An event that was deleted has no row.
-- pages: 20 + 4 an event
create function forebay.event_payloads_v1(p_event_ids bigint[], p_times timestamptz[])
returns table (event_id bigint, published_at timestamptz, event_type text, payload jsonb, headers jsonb, ordering_key text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select p.event_id, p.published_at, p.event_type, p.payload, p.headers, p.ordering_key
    from unnest(p_event_ids, p_times) u (event_id, published_at)
    -- Not a join, which may read the whole index if the statistics are those of an empty table.
    cross join lateral (select i.* from forebay.published i where i.event_id = u.event_id and i.published_at = u.published_at limit 1) p
$$;


-- The payload and the headers of the event that the arguments of a delivery name; null: it is not there.
create function forebay._event_of_delivery(p_args jsonb) returns jsonb
language plpgsql stable
-- planner: indexed
as $$
begin
    return (select jsonb_build_object('payload', p.payload, 'headers', p.headers) from forebay.published p
            where p.event_id = (p_args -> 'event' ->> 0)::bigint and p.published_at = (p_args -> 'event' ->> 1)::timestamptz);
exception when data_exception then
    return null;  -- A job that no router wrote.
end
$$;
