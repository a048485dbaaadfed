-- The jobs that groups had from plain lanes that were forgotten since: the running totals of their last batches.
create table forebay.forgotten (
    queue    text not null,
    group_id bigint not null,
    priority integer not null,
    total    bigint not null,
    constraint forgotten_pkey primary key (queue, group_id, priority)
);
