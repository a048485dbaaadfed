-- The only clock. Tests replace it in their database to shift time.
create function forebay._now() returns timestamptz
language sql volatile
as $$ select clock_timestamp() $$;
