-- grant: worker, operator, reader

-- The number of the newest migration in this database; null if none is recorded.
create function forebay.schema_version() returns integer
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$ select max(m.version) from forebay.schema_migration m $$;
