-- Alerts: what is wrong now, and when the rules were last applied. See docs/design/alerts.md.

-- A row for each condition that holds, or held a moment ago. It is changed by each check, and deleted when the alert is over.
create table forebay.alert (
    code       text collate "C" not null,
    subject    text collate "C" not null,  -- the queue, endpoint, mirror or schedule; empty: the database
    group_name text collate "C" not null,  -- the consumer group; empty: none
    severity   text not null check (severity in ('error', 'warning')),
    problem    text not null,
    hint       text not null,
    since      timestamptz not null,       -- start of the condition
    seen_at    timestamptz not null,       -- the last check that found it
    fired_at   timestamptz,                -- null: it has not lasted long enough
    primary key (code, subject, group_name)
) with (fillfactor = 50);

comment on table forebay.alert is 'Conditions of alerts; read them with forebay.alerts().';

-- The last check, one row.
create table forebay.alert_check (
    one        boolean primary key default true check (one),
    checked_at timestamptz not null,
    ballast_released_at timestamptz       -- see forebay.drop_ballast(); null: never
) with (fillfactor = 50);

-- Thresholds that differ from the defaults.
create table forebay.alert_threshold (
    name  text collate "C" not null,
    queue text collate "C" not null,       -- empty: all queues
    tag   text collate "C" not null,       -- empty: all tags
    value double precision not null,
    primary key (name, queue, tag)
);

-- Sizes in bytes, every quarter of an hour for two days: growth comes from them.
create table forebay.space_sample (
    at             timestamptz primary key,
    log_bytes      bigint not null,
    schema_bytes   bigint not null,
    database_bytes bigint                   -- null: the owner of the schema may not connect
);

-- Always empty; see forebay.probe_write().
create table forebay.write_probe (
    one boolean primary key default true check (one)
);

-- Room that an operator can release on a full disk: rows of a page each. Neither the WAL nor a replica has it, and after a crash of the server
-- it is empty.
create unlogged table forebay.ballast ();
-- In one statement: with another storage the table would get a second one for long values, whose index needs a page at each truncation.
alter table forebay.ballast add column filler text not null, alter column filler set storage plain, replica identity full;
