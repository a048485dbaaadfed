-- grant: worker, operator, reader

-- The rows that forebay.apply_queues() would return. Changes nothing. Workers call it when they
-- start.
--
-- Errors: JQ001 a declaration is refused.
create function forebay.compare_queues(
    app text, queues jsonb, overwrite boolean default false)
returns table (queue text, setting text, database jsonb, code jsonb, applied jsonb, applied_by text,
               applied_at timestamptz, action text, changed_by text, changed_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select d.* from forebay._compare_queues(compare_queues.app, compare_queues.queues, coalesce(compare_queues.overwrite, false)) d
    where d.action <> 'record'
$$;
