-- Endpoints, event types, subscriptions and published events. See docs/design/endpoints.md.

-- Advanced by each change of an endpoint. null: there never was one.
create sequence forebay.endpoint_seq as bigint cache 1;

-- The types of sinks that SQL accepts, with the names of their settings. Those of other packages are recorded by processes that have them.
create table forebay.sink_type (
    name     text collate "C" primary key,
    settings text[] not null,
    required text[] not null,
    is_ours  boolean not null              -- of Forebay: only migrations change it
);

-- Hosts that deliverers may call although they are not public, as the last one that started has recorded.
create table forebay.endpoint_host (
    host text collate "C" primary key            -- a network, an address or a name, perhaps with a port
);

create table forebay.endpoint (
    endpoint_id       bigint generated always as identity primary key,
    name              text collate "C" not null unique,
    sink              text not null,             -- type of the sink, such as http
    config            jsonb not null,            -- of the sink; secrets by reference
    retired_secrets   jsonb not null default '[]',  -- [{"secret", "until"}]: signed with until then
    retry             jsonb,                     -- name of a preset, delays in seconds, or a policy; this and the next three: null, as the database has it
    rate              double precision check (rate > 0),     -- deliveries per second
    burst             integer check (burst >= 1),
    concurrency       integer check (concurrency >= 1),
    breaker_threshold integer check (breaker_threshold between 1 and 1000),
    breaker_cooldown  integer check (breaker_cooldown between 5 and 3600),  -- seconds
    disable_after     interval,                  -- null: failures never disable it
    max_waiting       bigint check (max_waiting >= 1),  -- deliveries that wait; null: no bound
    max_age           interval,                  -- of a delivery; null: as the event
    keeps_response    boolean not null default false,  -- the answer is kept as the result of the delivery
    disabled_at       timestamptz,               -- null: enabled
    disabled_why      text,
    created_at        timestamptz not null,
    changed_at        timestamptz not null,
    version           bigint not null,           -- the transaction of the last change, also of the breaker: see endpoint_settings_v1()
    disable_on_gone   boolean not null default true,  -- an answer that it wants no messages any more disables it
    when_full         text not null default 'refuse' check (when_full in ('refuse', 'drop'))  -- what becomes of events beyond max_waiting
);
create index endpoint_by_version on forebay.endpoint (version);
create index endpoint_by_bound on forebay.endpoint (max_waiting) where when_full = 'refuse';  -- the lowest one first

comment on table forebay.endpoint is 'Destinations of published events; change them with forebay.alter_endpoint() and its relatives.';

-- What the calls of an endpoint found; the breaker of its key has its failures in a row. One row, updated when the state changes and otherwise at most once in some seconds.
create table forebay.endpoint_state (
    endpoint_id      bigint primary key references forebay.endpoint on delete cascade,
    failing_since    timestamptz,                 -- first failure since the last success; null: none
    failing_percent  integer not null default 0,  -- of disable_after, as last published
    is_overfull      boolean not null default false,  -- deliveries are dropped: max_waiting
    last_success_at  timestamptz,
    last_failure_at  timestamptz,
    last_error       text,
    throttled_until  timestamptz                  -- end of the last pause that it asked for; null: it never did
) with (fillfactor = 50);

-- Counts of calls, appended by each process, every few seconds in which there was something to count.
create table forebay.endpoint_activity (
    endpoint_id bigint not null,
    at          timestamptz not null,
    accepted    integer not null,
    failed      integer not null,                -- and retried, or dead after the last try
    rejected    integer not null,                -- permanent errors
    dropped     integer not null,                -- by the router: max_waiting
    latencies   integer[] not null               -- of accepted ones, from publication: element n, from 0, counts those below 2^n milliseconds, and not below 2^(n-1)
);
create index endpoint_activity_by_endpoint on forebay.endpoint_activity (endpoint_id, at);
create index endpoint_activity_by_age on forebay.endpoint_activity (at);
alter table forebay.endpoint_activity replica identity full;

-- What a process reports about one endpoint: see report_deliveries_v1().
create type forebay._delivery_report as (
    endpoint_id bigint, accepted integer, failed integer, rejected integer, latencies integer[], failures integer, answered boolean, error text,
    pause_seconds double precision, gone boolean);

create table forebay.event_type (
    name        text collate "C" primary key,
    description text,
    created_at  timestamptz not null
);

create table forebay.subscription (
    subscription_id bigint generated always as identity primary key,
    event_type      text collate "C" not null references forebay.event_type on delete cascade,
    endpoint_id     bigint not null references forebay.endpoint on delete cascade,
    filter          jsonb,                       -- the payload must contain it; null: all
    filter_member   text collate "C",            -- a scalar member of the filter, by which it is looked up; null: none
    filter_value    jsonb,
    start_at        timestamptz,                 -- events published since then; null: start_after decides
    start_after     pg_snapshot,                 -- events that it does not show; null with start_at null: from the beginning
    active_at       timestamptz,                 -- since then the router expands events for it; null: not yet
    routed_to       bigint not null,             -- until then: events up to this route_no were looked at,
    routed_bound    bigint not null,             --   and those up to this one can be: no router writes a lower one
    created_at      timestamptz not null,
    unique (event_type, endpoint_id)
);
create index subscription_by_member on forebay.subscription (event_type, filter_member, filter_value);
create index subscription_by_endpoint on forebay.subscription (endpoint_id);

-- Expanded events. Append-only, except for keep_until; maintenance deletes them after it.
create table forebay.published (
    route_no       bigint generated always as identity,  -- in the order of the expansions; events of one ordering key in their order
    event_id       bigint not null,              -- id of the job that published it
    published_at   timestamptz not null,         -- with it a key: ids may be given out again after a server lost commits
    xid            xid8 not null,                -- of the transaction that published it, or in which it became due
    event_type     text collate "C" not null,
    payload        jsonb not null,
    priority       integer not null,
    expires_at     timestamptz not null,
    keep_until     timestamptz not null,
    routed_at      timestamptz not null,
    deliveries     integer not null,             -- live ones
    primary key (event_id, published_at),
    {options types but max_attempts, limit_key}
);
create index published_by_type on forebay.published (event_type, route_no);
create index published_by_end on forebay.published (keep_until);

-- Replays of endpoints, worked on by routers in steps.
create table forebay.replay (
    replay_id    bigint generated always as identity primary key,
    endpoint_id  bigint not null references forebay.endpoint on delete cascade,
    since        timestamptz not null,           -- events published from then on,
    until        timestamptz not null,           --   and before this
    routed_to    bigint not null,                -- events up to this route_no were looked at,
    routed_bound bigint not null,                --   those up to this one will be
    deliveries   bigint not null default 0,
    created_at   timestamptz not null,
    ended_at     timestamptz                     -- null: not yet
);
create index replay_by_endpoint on forebay.replay (endpoint_id);
create index replay_by_end on forebay.replay (ended_at) where ended_at is not null;

-- A delivery that is to be written: an event and an endpoint. nr orders them.
create type forebay._new_delivery as (
    nr bigint, endpoint_id bigint, event_id bigint, published_at timestamptz, event_type text, priority integer,
    expires_at timestamptz, {options types but max_attempts, limit_key, headers});
