-- How often a delivery to an endpoint is tried, as the policy is that holds for it now; null: the queue is not that of the deliveries, or the
-- endpoint was dropped.
create function forebay._delivery_tries(p_queue text, p_endpoint text) returns integer
language sql stable
as $$
    select (forebay.retry_plan((forebay._with_defaults(e)).retry)).tries
    from forebay.endpoint e
    where p_queue = 'forebay.deliver' and e.name = p_endpoint
$$;
