-- grant: worker

-- Do one step of a replay, over at most `p_most` events (1 to 10000); returns whether it is over.
-- The events are kept until their new deliveries have expired.
--
-- Errors: JQ012.
-- Transaction: alone.
-- Locks: the replay's row; a step that finds it locked does nothing. The rows of the events.
--
-- Inside: in the order of route_no over all event types of the endpoint, so that the order of a key
-- is kept.
-- pages: 200 + 40 an event
create function forebay.replay_step_v1(p_replay_id bigint, p_most integer default 1000) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    r        forebay.replay;
    v_most   constant integer := least(greatest(coalesce(p_most, 1000), 1), 10000);
    v_ends   timestamptz;
    v_seen   integer;
    v_last   bigint;
    v_new    forebay._new_delivery[];
    v_count  bigint;
begin
    perform forebay._require_alone('forebay.replay_step_v1()');
    select i.* into r from forebay.replay i where i.replay_id = p_replay_id for update skip locked;
    if not found then
        return not exists (select from forebay.replay i where i.replay_id = p_replay_id and i.ended_at is null);
    elsif r.ended_at is not null then
        return true;
    end if;
    select forebay._now() + least(coalesce(e.max_age, interval '30 days'), interval '30 days') into v_ends
    from forebay.endpoint e where e.endpoint_id = r.endpoint_id;
    with looked as materialized (
        select p.*, s.filter
        from forebay.subscription s
        cross join lateral (select i.* from forebay.published i
                            where i.event_type = s.event_type and i.route_no > r.routed_to and i.route_no <= r.routed_bound
                            order by i.route_no limit v_most) p
        where s.endpoint_id = r.endpoint_id
        order by p.route_no limit v_most)
    select count(*), max(l.route_no),
           array_agg(row(l.route_no, r.endpoint_id, l.event_id, l.published_at, l.event_type, l.priority, v_ends, {options of l but max_attempts, limit_key, headers})::forebay._new_delivery
                     order by l.route_no)
               filter (where l.published_at >= r.since and l.published_at < r.until and (l.filter is null or l.payload @> l.filter))
    into v_seen, v_last, v_new from looked l;
    -- By their places, since a join with the events may read all of the table.
    update forebay.published p set keep_until = v_ends
    where p.ctid = any (array(
        select f.place from unnest(v_new) n
        cross join lateral (select i.ctid as place from forebay.published i
                            where i.event_id = n.event_id and i.published_at = n.published_at and i.keep_until < v_ends
                            for no key update) f));
    v_count := forebay._add_deliveries(v_new);
    update forebay.replay i
    set routed_to = case when v_seen >= v_most then v_last else r.routed_bound end, deliveries = i.deliveries + v_count,
        ended_at = case when v_seen < v_most then forebay._now() end
    where i.replay_id = r.replay_id;
    return v_seen < v_most;
end
$$;
