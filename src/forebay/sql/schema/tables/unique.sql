-- Uniqueness by uniqueness mode: what a key means while another job of the same key waits or runs.
--
-- A key has generations, each with its job, appended and read newest first. Whether a generation still holds its key is
-- not written down anywhere: it is read off its job, which ends in one commit whatever ends it. So no end of a job has to
-- release anything, and no key can be left behind.
--
-- Invariant "one generation": of a key's jobs only the newest can ever start. See docs/design/unique.md.

create table forebay.unique_key (
    xid         xid8 not null default pg_current_xact_id(),           -- Before job_id, as in the log.
    queue       text collate "C" not null,
    mode      "char" not null check (mode in ('o', 'i', 'c', 'r', 'd', 't')),  -- named in forebay.code
    key         text collate "C" not null,
    gen         bigint not null,
    job_id      bigint not null default nextval('forebay.log_seq'),
    lane        bigint not null,         -- the public lane the job was put in
    is_deferred boolean not null,        -- it had to wait for a time: its first row is not in the log under its own number
    taken_at    timestamptz not null,
    expires_at  timestamptz not null,    -- the job does not start from then on
    free_at     timestamptz,             -- throttle: when the period is over
    first_at    timestamptz,             -- debounce: when the first of the calls came that this job stands for
    payload     bytea,                   -- idempotent: hash of kind and arguments
    origin      bigint not null,         -- coalesce: the oldest generation that an open transaction may still have joined
    primary key (queue, mode, key, gen)
);
create index unique_key_by_job on forebay.unique_key (job_id) where mode = 'c';
create index unique_key_by_time on forebay.unique_key (taken_at);

comment on table forebay.unique_key is 'Unique keys: a row for each generation of a key, with its job.';


-- One job with a unique key of a bulk enqueue; first_nr is the first job of its key, and differs what an idempotency key refuses.
-- No name is one of unique_key's.
create type forebay._key_input as (
    nr bigint, first_nr bigint, differs boolean, its_queue text, code "char", word text, unique_as jsonb, its_lane bigint,
    start timestamptz, ends timestamptz, digest bytea);

-- What became of it: the job that stands for it, and of a new one when it was enqueued and when it starts; null: at once.
create type forebay._key_taken as (stands_for bigint, is_new boolean, since timestamptz, starts_at timestamptz);
