-- The maximum number of attempts of a queue's jobs, instead of that of their kinds.
create table forebay.queue_attempts (
    queue        text primary key,
    max_attempts integer not null check (max_attempts between 1 and 10000)
);

comment on table forebay.queue_attempts is 'Maximum attempts of the jobs of a queue; set with forebay.set_max_attempts().';

-- Lets a settlement see, without reading the table, that no queue ever had one.
create sequence forebay.queue_attempts_seq as bigint cache 1;
