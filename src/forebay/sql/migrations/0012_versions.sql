-- Which migrations were applied, and when. Written by `forebay migrate` and by the script of `forebay sql`.

create table forebay.schema_migration (
    version    integer primary key check (version > 0),
    name       text not null,
    checksum   text not null check (checksum ~ '^[0-9a-f]{64}$'),   -- SHA-256 of the file
    applied_at timestamptz not null default clock_timestamp()
);

comment on table forebay.schema_migration is 'The migrations of this schema; a file that changed afterwards is refused.';


-- The version of the schema: the number of its newest migration; null when none is recorded.
create function forebay.schema_version() returns integer
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$ select max(m.version) from forebay.schema_migration m $$;
