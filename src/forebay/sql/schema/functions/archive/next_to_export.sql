-- grant: operator

-- The oldest segment that an export has not written, and in which every job has ended or continues
-- in a later one: its numbers are `lo` to below `hi`. No row: there is none. A call looks at no
-- more than twenty segments that are not ready; then `segment_id` is null, and `next` is the
-- `after` of the next call.
--
-- Errors: JQ001 no such export.
-- Transaction: the caller's; reads only.
create function forebay.next_to_export(name text, after bigint default null)
returns table (segment_id bigint, lo bigint, hi bigint, next bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_kept integer := 0;
begin
    perform forebay._require_export(next_to_export.name);
    for segment_id, lo, hi in
        select s.segment_id, s.lo, s.hi
        from forebay.segment s join forebay.seal f using (segment_id)
        where s.removed_at is null and s.segment_id > coalesce(next_to_export.after, -1)
          and not exists (select from forebay.exported_segment x where x.name = next_to_export.name and x.segment_id = s.segment_id)
        order by s.segment_id
    loop
        next := segment_id;
        if forebay._segment_held_by(segment_id) is null then
            return next;
            return;
        end if;
        v_kept := v_kept + 1;
        if v_kept >= 20 then
            segment_id := null;
            lo := null;
            hi := null;
            return next;
            return;
        end if;
    end loop;
end
$$;


-- Refuse the name of an export that does not exist.
--
-- Errors: JQ001.
create function forebay._require_export(p_name text) returns void
language plpgsql stable
as $$
begin
    if not exists (select from forebay.export e where e.name = p_name) then
        raise exception using errcode = 'JQ001', column = 'name', message = format('name %s is not that of an export', coalesce(quote_literal(left(p_name, 100)), 'null')),
            hint = 'Create it: forebay.create_export().';
    end if;
end
$$;
