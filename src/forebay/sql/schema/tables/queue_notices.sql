-- The queues that send notices of changes. See docs/design/engine.md#notices.
create table forebay.queue_notices (
    queue text primary key
);

comment on table forebay.queue_notices is 'Queues that send notices on channel forebay_events; set with forebay.set_notices().';

-- Lets a settlement see, without reading the table, that no queue ever sent them.
create sequence forebay.notices_seq as bigint cache 1;
