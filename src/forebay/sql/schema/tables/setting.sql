-- Settings of the database rather than of one process. Maintenance reads them; an enqueue does so only when its arguments are
-- large enough to come near a limit.
create table forebay.setting (
    name  text primary key,
    value bigint not null
);

insert into forebay.setting (name, value) values
    ('segment_rows', 1000000),          -- numbers per segment of the log
    ('reserve_rows', 64000000),         -- numbers ahead of the sequence that have segments
    ('retention_days', 30),             -- settled segments older than this are emptied
    ('retention_bytes', 20000000000),   -- so are the oldest settled ones beyond this total size
    ('lane_idle_hours', 24),            -- lanes without jobs for this time are forgotten in steps
    ('args_bytes_max', 1048576),
    ('args_depth_max', 64),
    ('result_bytes_max', 65536);

comment on table forebay.setting is 'Database-wide settings; change them with forebay.configure().';
