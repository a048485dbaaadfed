-- grant: operator

-- Let the emptying of segments wait for an export that writes their jobs to files. The export wants
-- each segment that is not emptied yet. From the commit on, retention empties no segment that the
-- export has not marked as written, until the segment has waited for `hold_hours`. This time begins
-- when retention would have emptied it.
--
-- Parameters:
--   name        1 to 100 letters, digits and `_ . -`
--   hold_hours  1 to 87600; the log grows meanwhile
--
-- Errors: JQ001 a bad name or number, or the name is taken.
-- See: docs/howto/look-back.md#keep-everything
--
-- Inside: Invariant "exported, then emptied", which forebay.retain_v1() keeps.
create function forebay.create_export(name text, hold_hours integer default 72) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
begin
    if (create_export.name ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$') is not true then
        raise exception using errcode = 'JQ001', column = 'name',
            message = format('name %s is not 1 to 100 letters, digits and _ . -', coalesce(quote_literal(left(create_export.name, 100)), 'null'));
    elsif (create_export.hold_hours between 1 and 87600) is not true then
        raise exception using errcode = 'JQ001', column = 'hold_hours',
            message = format('hold_hours %s is outside 1 to 87600', coalesce(create_export.hold_hours::text, 'null'));
    end if;
    insert into forebay.export (name, hold_hours, created_at, missed)
    values (create_export.name, create_export.hold_hours, forebay._now(), 0)
    on conflict on constraint export_pkey do nothing;
    if not found then
        raise exception using errcode = 'JQ001', column = 'name', message = format('name %s is taken by an export', quote_literal(create_export.name)),
            hint = 'Drop that export first: forebay.drop_export().';
    end if;
    perform forebay._record_event('exports.create', p_detail => create_export.name, p_new => jsonb_build_object('hold_hours', create_export.hold_hours));
end
$$;
