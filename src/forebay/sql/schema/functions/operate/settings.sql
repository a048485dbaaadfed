-- grant: operator, reader

-- The settings of the database, with what each may be and who has set it.
--
-- Columns:
--   value     the value that holds; null: none
--   built_in  the value without forebay.configure()
--   range     what it may be
--   unit      of numbers; null: it has none
--   set_by    who set it: the actor that the client gave, else the login role; null: it is not
--             set, and the built-in value holds
--   set_at    when
--   meaning   what it does
--
-- Transaction: the caller's; reads only.
-- See: docs/reference/settings.md#settings-of-the-database
create function forebay.settings()
returns table (name text, value jsonb, built_in jsonb, range text, unit text, set_by text, set_at timestamptz, meaning text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select r.name, nullif(s.value, 'null'), nullif(r.built_in, 'null'), forebay._range_in_words(r.sort, r.lowest, r.highest, r.choices, r.unit), r.unit,
           coalesce(s.actor, s.role), s.set_at, r.meaning
    from forebay._setting_rules() r
    join forebay.setting s on s.name = r.name
    order by r.nr
$$;
