-- Leases: one for each worker process and epoch of its database connection. The row is written when the lease opens and when
-- it closes, never between; heartbeats have a separate table.
create table forebay.lease (
    lease_id        bigint primary key,  -- random, so that no lease has the id of a lost one
    worker          text not null,       -- a name for humans: host:pid:token
    version         integer,             -- schema version that its code was made for; null: not reported
    lease_seconds   double precision not null,
    suspect_seconds double precision not null,
    opened_at       timestamptz not null,
    closed_at       timestamptz,
    closed_as       text check (closed_as in ('closed', 'retired', 'revoked', 'adopted')),  -- retired: its worker has another one
    details         jsonb,               -- what the worker reports of itself: host, pid, group, queues, versions, concurrency
    alive_at        timestamptz,         -- the last sign of life, once it is closed
    held            jsonb,               -- what it held when it was closed, see _record_end(); null: nothing
    signal          integer,             -- that ended the process, as its parent said; null: not known
    stop_by         text,                -- who had requested its worker to stop when it was closed; null: it was not requested
    check ((closed_at is null) = (closed_as is null))
);
create index lease_open on forebay.lease (lease_id) where closed_at is null;
create index lease_by_end on forebay.lease (closed_at, lease_id) where closed_at is not null;

create table forebay.heartbeat (
    lease_id     bigint not null,
    heartbeat_at timestamptz not null,
    backend_pid  integer not null,
    running_jobs bigint[],               -- ids of jobs whose handlers run in the process, at most 1,000; null: none
    memory_kb    integer                 -- resident memory of the process; null: not reported
);
create index heartbeat_newest on forebay.heartbeat (lease_id, heartbeat_at desc);
alter table forebay.heartbeat replica identity full;

-- What operators set for running workers. A row is over with its worker.
create table forebay.worker_setting (
    worker      text primary key,        -- as in lease.worker
    concurrency integer check (concurrency between 1 and 10000),
    stop_at     timestamptz,             -- when it was asked to stop
    stop_by     text,                    -- by whom: the actor, else the role
    check ((stop_at is null) = (stop_by is null)),
    check (concurrency is not null or stop_at is not null)
);
