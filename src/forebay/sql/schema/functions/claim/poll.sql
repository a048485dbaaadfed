-- grant: worker

-- Poll as forebay.ready_v1(); if no lane is ready, also take or renew the leadership of polling for
-- these groups, as forebay.lead_v1(), for `p_seconds` (above 0, at most 130). Returns the ready
-- lanes, with `held` null. If there is none, it returns one row in which only `held` is set: the
-- groups for which `p_holder` leads now. `p_sleep_millis` is in milliseconds, null for a caller
-- that does not sleep.
--
-- Errors: JQ001 a bad holder or time, only when no lane is ready; JQ030 foreign cluster.
-- Transaction: any; meant to be autocommitted. A leadership takes effect at once, also if the
--   transaction rolls back.
-- pages: 75 + 4 a lane + 6 a group + 2 an open transaction
create function forebay.poll_v1(p_group_ids bigint[], p_sleep_millis integer, p_holder integer, p_seconds double precision)
returns table (group_id bigint, lane bigint, queue text, priority integer, is_private boolean, is_suspect boolean, is_limited boolean,
               held bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
begin
    return query select r.*, null::bigint[] from forebay.ready_v1(p_group_ids, p_sleep_millis) r;
    if not found then
        held := forebay.lead_v1(p_holder, p_group_ids, p_seconds);
        return next;
    end if;
end
$$;
