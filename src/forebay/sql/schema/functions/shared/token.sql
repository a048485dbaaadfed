-- A token of a dry run: the number of jobs, what the dry run saw, and a digest of these and of what else it stands for.
--
-- Invariant "a token is a set": an act with a token takes only jobs that the dry run counted. What the dry run saw is the number that the
-- log would give next, and its snapshot: a later job has a higher number, or a transaction that the snapshot does not show.
create function forebay._token(p_jobs bigint, p_until bigint, p_snapshot pg_snapshot, p_what jsonb) returns text
language sql immutable
as $$ select forebay._token(p_jobs, concat_ws('-', p_until, p_snapshot), p_what) $$;


-- A token of a set that was digested whole: p_seen is what tells one dry run from another.
create function forebay._token(p_jobs bigint, p_seen text, p_what jsonb) returns text
language sql immutable
as $$
    select format('%s-%s-%s', p_jobs, p_seen, left(encode(sha256(convert_to(jsonb_build_array(p_jobs, p_seen, p_what)::text, 'UTF8')), 'hex'), 32))
$$;


-- What the dry run of a token saw; nulls for a text of another form.
create function forebay._seen_by_token(p_token text, out jobs bigint, out until_seq bigint, out snapshot pg_snapshot)
language sql immutable
as $$
    select m.part[1]::bigint, m.part[2]::bigint, m.part[3]::pg_snapshot
    from regexp_match(p_token, E'^(\\d{1,18})-(\\d{1,18})-(\\d+:\\d+:[\\d,]*)-[0-9a-f]{32}$') m (part)
$$;


-- Raise JQ042 for a token of a dry run of things with a name in the plural.
create function forebay._refuse_token(p_token text, p_things text default 'jobs') returns void
language plpgsql immutable
as $$
begin
    raise exception using errcode = 'JQ042',
        message = format('token %s is not that of this act, or other %s match by now', quote_literal(left(p_token, 60)), p_things),
        detail = jsonb_build_object('token', left(p_token, 60)),
        hint = 'Nothing was changed. Do a new dry run: filter and options are part of the token.';
end
$$;
