-- Settings of queues that an application declares: what forebay.apply_queues() applied last. See docs/design/declared-queues.md.

create table forebay.applied_setting (
    queue      text not null,
    setting    text not null,            -- max_waiting, rate with its burst, concurrency, key_rate with its burst, key_concurrency,
                                         -- shards, dead_keep_days, or 'group ' and a name
    value      jsonb not null,
    app        text not null,            -- the application that declares it
    applied_at timestamptz not null,
    primary key (queue, setting)
);

comment on table forebay.applied_setting is 'Settings of queues as an application last applied them; written by forebay.apply_queues().';

-- One difference between code, database and what was applied last. database: null for the default; code: null if it is not declared;
-- changed_by, changed_at: the last change of the setting, of one that apply does not write.
create type forebay._queue_difference as (
    queue text, setting text, database jsonb, code jsonb, applied jsonb, applied_by text, applied_at timestamptz, action text,
    changed_by text, changed_at timestamptz);
