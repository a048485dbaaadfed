-- How often a delivery to an endpoint is tried, as its policy is now; null: the queue is not that of the deliveries, or the endpoint was
-- dropped. The number of the presets is that of src/forebay/sending/_presets.py.
create function forebay._delivery_tries(p_queue text, p_endpoint text) returns integer
language sql stable
as $$
    select case when jsonb_typeof(e.retry) = 'array' then jsonb_array_length(e.retry) + 1 else 10 end
    from forebay.endpoint e
    where p_queue = 'forebay.deliver' and e.name = p_endpoint
$$;
