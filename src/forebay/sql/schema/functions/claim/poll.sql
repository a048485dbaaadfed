-- grant: worker

-- Poll as ready_v1; and if no lane is ready, take or keep the duties of polling for these groups, as lead_v1.
--
-- Parameters: see ready_v1 and lead_v1.
-- Returns: the ready lanes. If there is none, one row without a lane, and held: the groups for which the caller leads now.
-- Errors: see ready_v1 and lead_v1.
-- pages: 110 + 6 a lane + 12 a group + 5 an open transaction
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
