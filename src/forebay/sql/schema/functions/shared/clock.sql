-- The one clock. Tests replace it in their own database to shift time.
create function forebay._now() returns timestamptz
language sql volatile
as $$ select clock_timestamp() $$;
