-- grant: producer, worker

-- Take the next chunk of a backfill: the parts of its query, and what was counted; no row when all
-- chunks are done.
--
-- Errors: JQ041 no such backfill, or another role began it.
-- Locks: the backfill, until the transaction ends, so that one session at a time works on it.
create function forebay.backfill_take_v1(backfill_id bigint)
returns table (kind text, query text, options jsonb, key text, is_fixed boolean, no integer, behind text, upto text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_run forebay.backfill;
begin
    select b.* into v_run from forebay.backfill b where b.backfill_id = backfill_take_v1.backfill_id for update;
    if v_run.backfill_id is null then
        raise exception using errcode = 'JQ041',
            message = format('backfill %s not found', coalesce(backfill_take_v1.backfill_id::text, 'null')),
            detail = jsonb_build_object('backfill_id', backfill_take_v1.backfill_id),
            hint = 'The table forebay.backfill lists backfills in chunks for 30 days.';
    elsif (v_run.made_by, v_run.made_as) is distinct from (session_user, forebay._role_in_use()) then
        -- Its query would run with the rights of the role that continues it, and could return to those of the login.
        raise exception using errcode = 'JQ041',
            message = format('backfill %s was begun by %s%s', backfill_take_v1.backfill_id, v_run.made_by,
                             case when v_run.made_as <> v_run.made_by then format(' as %s', v_run.made_as) end),
            detail = jsonb_build_object('backfill_id', backfill_take_v1.backfill_id),
            hint = 'Only the login that began a backfill can continue it, in the same role.';
    end if;
    return query
    select v_run.kind, v_run.query, v_run.options, v_run.key, v_run.is_fixed, c.no,
           (select p.upto from forebay.backfill_chunk p where p.backfill_id = c.backfill_id and p.no = c.no - 1),
           c.upto
    from forebay.backfill_chunk c
    where c.backfill_id = backfill_take_v1.backfill_id and c.done_at is null
    order by c.no limit 1;
end
$$;
