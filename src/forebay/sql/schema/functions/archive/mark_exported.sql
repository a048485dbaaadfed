-- grant: operator

-- Record that an export has written all jobs of a segment, and that the file is safe. Retention may
-- empty the segment from the commit on. Returns false, and records nothing, if the segment was
-- emptied meanwhile: what was read of it may be incomplete.
--
-- Parameters:
--   jobs  the number of lines
--   file  where they are, at most 1000 characters
--
-- Errors: JQ001 no such export, or a bad value.
-- Locks: the row of the segment, shared, until the transaction ends.
create function forebay.mark_exported(name text, segment_id bigint, jobs bigint, file text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
begin
    perform forebay._require_export(mark_exported.name);
    if (mark_exported.jobs >= 0) is not true then
        raise exception using errcode = 'JQ001', column = 'jobs', message = format('jobs %s is not a number from 0', coalesce(mark_exported.jobs::text, 'null'));
    elsif (length(mark_exported.file) between 1 and 1000) is not true then
        raise exception using errcode = 'JQ001', column = 'file', message = 'file must have 1 to 1000 characters';
    end if;
    perform from forebay.segment s where s.segment_id = mark_exported.segment_id and s.removed_at is null for share;
    if not found then
        return false;
    end if;
    insert into forebay.exported_segment as x (name, segment_id, exported_at, jobs, file)
    values (mark_exported.name, mark_exported.segment_id, forebay._now(), mark_exported.jobs, mark_exported.file)
    on conflict on constraint exported_segment_pkey do update
    set exported_at = excluded.exported_at, jobs = excluded.jobs, file = excluded.file;
    return true;
end
$$;
