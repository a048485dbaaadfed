-- grant: operator

-- Let no segment wait for an export any more; its files stay. Returns whether there was such an
-- export.
create function forebay.drop_export(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
begin
    delete from forebay.exported_segment x where x.name = drop_export.name;
    delete from forebay.export e where e.name = drop_export.name;
    if not found then
        return false;
    end if;
    perform forebay._record_event('exports.drop', p_detail => drop_export.name);
    return true;
end
$$;
