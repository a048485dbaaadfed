-- In which queue the jobs of a kind wait, as the worker that started last declares it. An enqueue by name without a queue reads it.
create table forebay.kind_queue (
    kind           text collate "C" primary key,
    queue          text not null,
    holds_key      boolean not null default false,  -- a dead letter of the kind holds its ordering key
    recorded_at    timestamptz not null,
    recorded_by    text not null,        -- the worker
    previous_queue text,                 -- before it was recorded; null: the kind was not known
    previous_by    text,
    alternated_at  timestamptz,          -- when a worker last recorded the previous queue again; null: never
    keys           jsonb,                -- which arguments make the keys of its jobs, see forebay._declared_keys(); null: none
    on_dead        jsonb                 -- the follow-up of its dead jobs, see forebay._enqueue_follow_up(); null: none
);
-- Not null once a kind has declared keys: an enqueue that gives a queue reads the table from then on.
create sequence forebay.kind_keys_seq as bigint cache 1;
-- Not null once a kind has declared a follow-up of its dead jobs: a death reads the table from then on.
create sequence forebay.on_dead_seq as bigint cache 1;
