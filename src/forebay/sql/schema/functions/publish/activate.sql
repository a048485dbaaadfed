-- grant: worker

-- Do one step of the activation of a subscription, over at most `p_most` events (1 to 10000);
-- returns whether it is over.
--
-- Errors: JQ012.
-- Transaction: alone.
-- Locks: the subscription's row; a step that finds it locked does nothing. In short steps that of
--   the routers, alone.
--
-- Inside: Invariant "from its start, and nothing twice": routers insert into `published` under the
-- shared lock. Under the exclusive one no such transaction is open, so each event is either in
-- `published` now, and delivered by these steps, or will be expanded after the subscription is
-- active, and delivered by its router. Steps write deliveries in the order of route_no, before any
-- that a router writes: so the order of a key is kept.
--
-- A step looks at p_most events up to routed_bound, which no router can write any more. When few
-- are left behind it, the last step takes the lock, expands them, and activates; when many are, it
-- only moves the bound.
-- pages: 200 + 30 an event
create function forebay.activate_v1(p_subscription_id bigint, p_most integer default 1000) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    s       forebay.subscription;
    v_most  constant integer := least(greatest(coalesce(p_most, 1000), 1), 10000);
    v_last  bigint;
    v_bound bigint;
begin
    perform forebay._require_alone('forebay.activate_v1()');
    select i.* into s from forebay.subscription i where i.subscription_id = p_subscription_id for update skip locked;
    if not found then
        return not exists (select from forebay.subscription i where i.subscription_id = p_subscription_id and i.active_at is null);
    elsif s.active_at is not null then
        return true;
    elsif s.routed_to < s.routed_bound then
        v_last := forebay._backfill(s, s.routed_bound, v_most);
        update forebay.subscription i set routed_to = coalesce(v_last, s.routed_bound) where i.subscription_id = s.subscription_id;
        return false;
    end if;
    perform forebay._lock_routing(false);
    v_bound := coalesce(pg_sequence_last_value(pg_get_serial_sequence('forebay.published', 'route_no')::regclass), 0);
    if (select count(*) from (select from forebay.published p
                              where p.event_type = s.event_type and p.route_no > s.routed_to limit v_most + 1) n) > v_most then
        update forebay.subscription i set routed_bound = v_bound where i.subscription_id = s.subscription_id;
        return false;
    end if;
    perform forebay._backfill(s, v_bound, v_most);
    update forebay.subscription i set routed_to = v_bound, routed_bound = v_bound, active_at = forebay._now()
    where i.subscription_id = s.subscription_id;
    return true;
end
$$;


-- Write the deliveries of a subscription for the next events that it looks at; returns the last route_no, or null when it looked at all up
-- to p_bound. Events past their expiry are not delivered.
create function forebay._backfill(s forebay.subscription, p_bound bigint, p_most integer) returns bigint
language plpgsql volatile
-- planner: in order
as $$
declare
    v_seen integer;
    v_last bigint;
    v_new  forebay._new_delivery[];
begin
    with looked as materialized (
        select p.* from forebay.published p
        where p.event_type = s.event_type and p.route_no > s.routed_to and p.route_no <= p_bound order by p.route_no limit p_most)
    select count(*), max(l.route_no),
           array_agg(row(l.route_no, s.endpoint_id, l.event_id, l.published_at, l.event_type, l.priority, l.expires_at, {options of l but max_attempts, limit_key, headers})::forebay._new_delivery
                     order by l.route_no)
               filter (where l.expires_at > forebay._now() and (s.filter is null or l.payload @> s.filter)
                         and forebay._is_admitted(l.published_at, l.xid, s.start_at, s.start_after))
    into v_seen, v_last, v_new from looked l;
    if not exists (select from forebay.endpoint e where e.endpoint_id = s.endpoint_id and e.disabled_at is not null) then
        perform forebay._add_deliveries(v_new);
    end if;
    return case when v_seen >= p_most then v_last end;
end
$$;
