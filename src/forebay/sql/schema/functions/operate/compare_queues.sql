-- grant: worker, operator, reader

-- Compare the queues that an application declares with the database, and change nothing. Returns a row for each difference, as
-- forebay.apply_queues() does.
--
-- Parameters: see forebay.apply_queues().
-- Errors: JQ001 a declaration is refused.
create function forebay.compare_queues(
    app text, queues jsonb, overwrite boolean default false,
    out queue text, out setting text, out database jsonb, out code jsonb, out applied jsonb, out applied_by text,
    out applied_at timestamptz, out action text)
returns setof record
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select d.* from forebay._compare_queues(compare_queues.app, compare_queues.queues, coalesce(compare_queues.overwrite, false)) d
    where d.action <> 'record'
$$;
