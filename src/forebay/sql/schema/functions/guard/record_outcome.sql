-- grant: operator

-- Record the outcome of an act: once, and only as the login role that recorded the act.
--
-- Errors: JQ001 this role has recorded no such act, or the act has an outcome.
-- Transaction: any; meant to be autocommitted.
-- Locks: the event's row.
create function forebay.record_outcome(p_event_id bigint, p_outcome text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
begin
    update forebay.guard_event e
    set outcome = left(coalesce(p_outcome, ''), 200), outcome_at = forebay._now()
    where e.event_id = p_event_id and e.outcome is null and e.acted_as = session_user;
    if not found then
        raise exception using errcode = 'JQ001', column = 'event_id',
            message = format('act %s of %s does not exist or already has an outcome', coalesce(p_event_id::text, 'null'), session_user);
    end if;
end
$$;
