-- grant: worker, operator

-- Record the result of an audit, an object with the columns of `forebay.mirror_audit`; returns the
-- audit's number.
--
-- Errors: JQ001 one of them is missing or wrong.
create function forebay.record_audit(p_name text, p_found jsonb) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    insert into forebay.mirror_audit (audit_id, mirror, ended_at, seconds, compared, items, copies, rows, ranges, differed, suspects,
                                    missing, stale, orphaned, ahead)
    select forebay._random_name(), p_name, forebay._now(), f.seconds, f.compared, f.items, f.copies, f.rows, f.ranges, f.differed, f.suspects,
           f.missing, f.stale, f.orphaned, f.ahead
    from jsonb_populate_record(null::forebay.mirror_audit, p_found) f
    returning audit_id into v_id;
    return v_id;
exception when not_null_violation or data_exception then
    perform forebay._require('p_found', false, concat_ws(': ', p_name, p_found::text), 'a name and an object with the columns of forebay.mirror_audit');
end
$$;
