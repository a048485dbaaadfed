-- grant: worker, operator, reader

-- The results of a mirror's newest audits, newest first: a JSON array of objects with the
-- attributes of `forebay.mirror.AuditRecord`. Kept for a year, or as long as the archive.
--
-- Errors: JQ001 a negative `most`.
create function forebay.mirror_audits(name text, most integer default 100) returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    select coalesce(jsonb_agg(to_jsonb(o) order by o.ended_at desc, o.audit_id), '[]')
    from (select a.* from forebay.mirror_audit a where a.mirror = mirror_audits.name order by a.ended_at desc, a.audit_id
          limit case when forebay._require('most', most >= 0, most::text, '0 or more') then most end) o
$$;
