-- Unordered queues: over how many public lanes of each priority their jobs are spread.
-- The sequence tells an enqueue, without a look at the table, that there never was one.
create table forebay.spread (
    queue text primary key,
    lanes integer not null check (lanes between 1 and 64)
);
create sequence forebay.spread_seq as bigint cache 1;
