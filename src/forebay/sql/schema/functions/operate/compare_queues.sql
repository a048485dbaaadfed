-- grant: worker, operator, reader

-- Compare the queues that an application declares with the database, and change nothing. Returns a row for each difference, as
-- forebay.apply_queues() does.
--
-- Parameters: see forebay.apply_queues().
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
