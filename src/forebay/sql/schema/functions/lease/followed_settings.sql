-- grant: worker

-- The settings of the database that workers follow, of those that were set: an object. Heartbeats
-- return them too, as `settings`.
-- pages: 10
create function forebay.followed_settings_v1() returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$ select coalesce(forebay._followed_settings(), '{}') $$;
