-- Up to which run_at, in microseconds since 1970, deferred rows were removed. While a snapshot is held, removed rows lie in front
-- of those to be removed next.
create sequence forebay.trim_position_seq as bigint cache 1;

-- Duties of maintenance that fail or are behind, for the doctor. A row exists only while there is something to report.
create table forebay.duty (
    name        text primary key,
    error       text,                    -- the last error; null: it does not fail
    since       timestamptz not null,    -- when it last was well
    recorded_at timestamptz not null,
    worker      text not null            -- the session that reported it
);
