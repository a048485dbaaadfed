-- Paused keys: no claim takes jobs of them, of any group. A row whose time has not come, or is over, pauses nothing. See "Paused keys" in
-- docs/design/limits.md and docs/design/ordering.md.
create table forebay.key_pause (
    queue     text not null,
    sort      text not null check (sort in ('ordering', 'limit')),
    key       text collate "C" not null,
    paused_at timestamptz not null,      -- when it was paused, or the pause was planned
    begins_at timestamptz,               -- of a planned pause; null: it began with the call
    resume_at timestamptz,               -- null: until it is resumed
    primary key (queue, sort, key)
);
create index key_pause_by_end on forebay.key_pause (resume_at);

comment on table forebay.key_pause is 'Paused ordering keys and limit keys of queues; set with forebay.pause_key().';

-- Lets a claim see, without reading a table, that no key was ever paused.
create sequence forebay.key_pause_seq as bigint cache 1;
