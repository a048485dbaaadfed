-- grant: operator, reader

-- The family of a job: the job whose handler enqueued it, or that it follows or is gathered by; and
-- the newest jobs that it has enqueued so, at most `most`, 1 to 100.
--
-- Columns:
--   relation  parent or child
--   relative  the id of that job; null: no child was found, and there may be some
--   kind, state
--             of it, in its first group; null: it is past retention
--   is_last   the search for children was complete; false: there may be more. Those in the part of
--             the log that is summarized are found by their parent; of what is not summarized yet,
--             it has looked at the newest 20,000 rows, and of scheduled jobs at the newest 50,000
--
-- Errors: JQ001 `most` is out of range.
-- See: docs/howto/look-back.md
create function forebay.family(job_id bigint, most integer default 20)
returns table (relation text, relative bigint, kind text, state text, is_last boolean)
language plpgsql stable security definer
rows 20
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_parent bigint;
    v_found  record;
begin
    if (family.most between 1 and 100) is not true then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 100', coalesce(family.most::text, 'null'));
    elsif family.job_id is null then
        return;
    end if;
    select forebay._parent_of(j.headers) into v_parent
    from (select r.headers from forebay._rows_of(family.job_id) r
          union all select d.headers from forebay.deferred d where d.job_id = family.job_id limit 1) j;
    select f.job_ids, f.next is null as is_last into v_found
    from forebay._find_jobs(
        format('j.headers ? ''forebay-parent'' and forebay._parent_of(j.headers) = %s', family.job_id), null, '&&',
        array[forebay._term('parent', family.job_id::text)], null, null, null, family.most, null, 20000, 1) f;
    return query
    select r.relation, r.relative, s.kind, s.state, r.is_last
    from (select 'parent' as relation, v_parent as relative, true as is_last where v_parent is not null
          union all
          select 'child', u, v_found.is_last from unnest(v_found.job_ids) u
          union all
          select 'child', null, false where not v_found.is_last and v_found.job_ids = '{}') r
    left join lateral (select j.kind, j.state from forebay.job(r.relative) j limit 1) s on true
    order by r.relation desc, r.relative desc;
end
$$;
