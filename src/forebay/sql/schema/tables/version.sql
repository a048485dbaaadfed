-- Which migrations were applied, and when. Written by `forebay migrate` and by the script of `forebay sql`.

create table forebay.schema_migration (
    version    integer primary key check (version > 0),
    name       text not null,
    checksum   text not null check (checksum ~ '^[0-9a-f]{64}$'),   -- SHA-256 of the file
    applied_at timestamptz not null default clock_timestamp()
);

comment on table forebay.schema_migration is 'Applied migrations; a migration file that changed afterwards is refused.';
