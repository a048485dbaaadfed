-- grant: operator, reader, worker

-- The alerts that fire, as the last check recorded them; with `with_pending` also conditions that
-- have not lasted long enough. The leader of maintenance checks every 15 to 60 seconds, and so do
-- `forebay alerts` and each scrape of `forebay metrics`. If the last check is more than three
-- minutes old and no tick is expected, the first row has the code `unchecked`; not before the first check or the end of the
-- first hour.
--
-- See: docs/howto/monitoring.md
create function forebay.alerts(with_pending boolean default false)
returns table (code text, subject text, group_name text, severity text, problem text, hint text, since timestamptz, fired_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select 'unchecked', '', '', 'error',
           'no process has checked the alerts ' || case when c.checked_at is null then 'yet' else 'since ' || to_char(c.checked_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC' end,
           'Start a worker, whose maintenance checks them, or run forebay alerts regularly.', c.checked_at, forebay._now()
    from (select max(i.checked_at) as checked_at from forebay.alert_check i) c
    where c.checked_at < forebay._now() - interval '3 minutes'
          -- A tick checks them, too.
          and not exists (select from forebay.ticks() t where t.alone and t.expected_by > forebay._now())
       or c.checked_at is null and not exists (select from forebay.schema_migration m where m.applied_at > forebay._now() - interval '1 hour')
    union all
    (select a.code, a.subject, a.group_name, a.severity, a.problem, a.hint, a.since, a.fired_at
     from forebay.alert a where a.fired_at is not null or alerts.with_pending
     order by a.code, a.subject, a.group_name)
$$;
