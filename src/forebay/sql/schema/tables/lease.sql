-- Leases: one per worker process and database connection epoch. The row is written when it opens and when
-- it closes and never between; heartbeats live in a table of their own.
create table forebay.lease (
    lease_id        bigint generated always as identity primary key,
    worker          text not null,       -- a name for humans: host:pid:token
    version         integer,             -- of the schema that its code was made for; null: it did not say
    lease_seconds   double precision not null,
    suspect_seconds double precision not null,
    opened_at       timestamptz not null,
    closed_at       timestamptz,
    closed_as       text check (closed_as in ('closed', 'revoked', 'adopted')),
    check ((closed_at is null) = (closed_as is null))
);
create index lease_open on forebay.lease (lease_id) where closed_at is null;

create table forebay.heartbeat (
    lease_id     bigint not null,
    heartbeat_at      timestamptz not null,
    backend_pid  integer not null,
    running_jobs bigint[]                -- ids of the jobs whose handlers ran in the process, at most 1,000; null: none
);
create index heartbeat_newest on forebay.heartbeat (lease_id, heartbeat_at desc);
