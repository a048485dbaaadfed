-- The fields that a job has for life: columns of forebay.log, forebay.deferred and forebay.dead_letter. {job} and {options} are made of
-- these lines; see README.md. They end their tables: a column that a later migration adds is the last.

max_attempts   integer,              -- null: what the handler's retry policy says
kind           text not null,
args           jsonb not null,
tag            text,
correlation_id text,
headers        jsonb,
ordering_key   text collate "C",
limit_key      text collate "C"
