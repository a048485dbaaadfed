-- Since when a group is paused; null: it is not, or its pause has ended by itself.
create function forebay._paused_since(p_paused_at timestamptz, p_resume_at timestamptz) returns timestamptz
language sql volatile
as $$ select case when p_resume_at <= forebay._now() then null else p_paused_at end $$;
