-- grant: operator

-- Start claiming jobs of a paused key again, or remove a planned pause. Returns whether there was
-- one.
--
-- Errors: JQ001 not exactly one key, or a bad name or key.
-- Locks: as forebay.pause_key().
--
-- Inside: Invariant "a paused key is not forgotten" (docs/design/limits.md).
create function forebay.resume_key(queue text, ordering_key text default null, limit_key text default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_sort   constant text := forebay._require_key(resume_key.queue, resume_key.ordering_key, resume_key.limit_key);
    v_key    constant text := coalesce(resume_key.ordering_key, resume_key.limit_key);
    v_before forebay.key_pause;
begin
    delete from forebay.key_pause p
    where p.queue = resume_key.queue and p.sort = v_sort and p.key = v_key returning * into v_before;
    if v_before.queue is null then
        return false;
    end if;
    perform forebay._announce_key(resume_key.queue, v_sort, v_key);
    if v_before.resume_at <= forebay._now() then
        return false;
    end if;
    perform forebay._record_event(
        'keys.resume', resume_key.queue, p_old => forebay._pause_facts(v_sort, v_key, v_before.begins_at, v_before.resume_at));
    return true;
end
$$;
