-- What is wrong with how an HTTP endpoint is logged in to: the rules of src/forebay/sinks/_http_logins.py. The configuration is without
-- nulls. A secret must be a reference; which ones a deliverer reads, and the hosts to which its own login may go, is known to it only.
create function forebay._http_login_problems(c jsonb) returns table (name text, problem text, hint text)
language plpgsql stable
-- planner: indexed
as $$
declare
    v_ways constant text[] := array(select w from unnest('{auth,token_url,aws_service}'::text[]) with ordinality u (w, nr) where c ? w order by nr);
begin
    if cardinality(v_ways) > 1 then
        return query select v_ways[2], 'excludes ' || v_ways[1], 'Give one of the two.';
    end if;
    if c ? 'token_url' then
        return query select 'token_url', u.problem, u.hint from forebay._url_problem(c -> 'token_url') u where u.problem is not null;
    end if;
    return query
    select o.name, 'has no meaning without ' || o.first, format('Give %s, or leave this out.', o.first)
    from (values ('client_id', 'token_url'), ('client_secret', 'token_url'), ('scope', 'token_url'), ('audience', 'token_url'), ('token_auth', 'token_url'),
                 ('aws_region', 'aws_service'), ('aws_key_id', 'aws_service'), ('aws_secret_key', 'aws_service'), ('aws_session_token', 'aws_service'),
                 ('aws_session_token', 'aws_key_id')) o (name, first)
    where c ? o.name and not c ? o.first;
    return query
    select o.name, format('is missing: %s needs it', o.first), format('Give %s.', o.name)
    from (values ('client_id', 'token_url'), ('client_secret', 'token_url'), ('aws_region', 'aws_service'), ('aws_secret_key', 'aws_key_id'),
                 ('aws_key_id', 'aws_secret_key')) o (name, first)
    where c ? o.first and not c ? o.name;
    return query
    select x.name, 'excludes aws_service, whose signature is for one address', 'Give one of the two.'
    from (values ('redirects', '0'::jsonb), ('url_suffixes', 'false')) x (name, off)
    where c ? 'aws_service' and coalesce(c -> x.name, x.off) <> x.off
    union all
    select 'redirect_hosts', 'excludes cert_file, whose certificate other hosts would see', 'Give one of the two.'
    where c ? 'cert_file' and coalesce(c -> 'redirect_hosts', '[]') <> '[]';
    return query
    select r.name, 'is not a reference to a secret', 'Write "env:NAME" or "file:/path".'
    from unnest('{client_secret,aws_key_id,aws_secret_key,aws_session_token}'::text[]) r (name)
    where c ? r.name and not forebay._is_reference(c -> r.name);
    return query
    select t.name, t.problem, t.hint
    from (values ('client_id', 'is not a text of 1 to 1000 printable characters', 'Write the id, or a reference to it.', E'^[^{control}]+$'),
                 ('audience', 'is not a text of 1 to 1000 printable characters', 'Leave it out where the token endpoint wants none.', E'^[^{control}]+$'),
                 ('scope', 'is not made of names of ASCII characters with one space between them', 'Write "NAME NAME".',
                  E'^[!#-\\[\\]-~]+( [!#-\\[\\]-~]+)*$'),
                 ('token_auth', 'is none of basic, body', 'basic sends id and secret in a header.', '^(basic|body)$'),
                 ('aws_service', 'is not a name of a-z, 0-9 and -', 'Services are "execute-api", "lambda" or "s3".', '^[a-z0-9-]{1,64}$'),
                 ('aws_region', 'is not a name of a-z, 0-9 and -', 'Regions are "eu-central-1" and the like.', '^[a-z0-9-]{1,64}$')) t (name, problem, hint, form)
    where c ? t.name and (jsonb_typeof(c -> t.name) = 'string' and length(c ->> t.name) <= 1000 and c ->> t.name ~ t.form) is not true;
    if c ? 'aws_service' and jsonb_typeof(c -> 'headers') = 'object' then
        return query
        select 'headers', format('has %s, which the signature sets', quote_literal(left(k, 40))), 'Leave it out.'
        from jsonb_object_keys(c -> 'headers') k where lower(k) in ('x-amz-content-sha256', 'x-amz-date', 'x-amz-security-token');
    end if;
end
$$;
