-- Unique keys: the uniqueness mode decides what a key means while another job of the same key waits or runs.
--
-- A key has generations, each with its job, appended and read newest first. Whether a generation still holds its key is not
-- stored: it follows from the state of its job, which ends in one commit however it ends. So the end of a job releases nothing,
-- and no key can stay locked.
--
-- Invariant "one generation": of a key's jobs only the newest can ever start. See docs/design/unique.md.

create table forebay.unique_key (
    xid         xid8 not null default pg_current_xact_id(),           -- Before job_id, as in the log.
    queue       text collate "C" not null,
    mode      "char" not null check (mode in ('o', 'i', 'c', 'r', 'd', 't')),  -- named in forebay.code
    key         text collate "C" not null,
    gen         bigint not null,
    job_id      bigint not null default nextval('forebay.log_seq'),
    lane        bigint not null,         -- public lane of the job
    is_deferred boolean not null,        -- scheduled for later: its first row is not in the log under its number
    taken_at    timestamptz not null,
    expires_at  timestamptz not null,    -- the job does not start at or after this
    free_at     timestamptz,             -- throttle: when the period is over
    first_at    timestamptz,             -- debounce: time of the first call that this job stands for
    payload     bytea,                   -- idempotent: hash of kind and arguments
    origin      bigint not null,         -- coalesce: the oldest generation that an open transaction may still have joined
    primary key (queue, mode, key, gen)
);
create index unique_key_by_job on forebay.unique_key (job_id) where mode = 'c';
-- For maintenance: a key of a long period is not looked at before its end.
create index unique_key_by_time on forebay.unique_key (coalesce(free_at, taken_at), job_id);

comment on table forebay.unique_key is 'Unique keys: a row for each generation of a key, with its job.';


-- One job with a unique key in a bulk enqueue. first_nr is the first job of the same key; differs: an idempotency key
-- refuses it. No column has the name of a column of unique_key.
create type forebay._key_input as (
    nr bigint, first_nr bigint, differs boolean, its_queue text, code "char", word text, unique_as jsonb, its_lane bigint,
    start timestamptz, ends timestamptz, digest bytea);

-- The result: the job that stands for the input; for a new job also when it was enqueued and when it starts (null: at once).
create type forebay._key_taken as (stands_for bigint, is_new boolean, since timestamptz, starts_at timestamptz);
