-- Settings of the database rather than of one process, a row for each. Maintenance reads them; workers with their heartbeats, deliverers with
-- the settings of endpoints; an enqueue only when its arguments come near a limit, or where a max_waiting was ever set.
--
-- The rows are made from forebay._setting_rules(), which has what each may be.
create table forebay.setting (
    name   text primary key,
    value  jsonb not null,               -- 'null': none
    set_at timestamptz,                  -- null: it is not set, and the value is the built-in one
    role   text,                         -- login role that set it
    actor  text                          -- who, as the client says: the setting forebay.actor
);

comment on table forebay.setting is 'Database-wide settings; change them with forebay.configure(), read them with forebay.settings().';
