-- What a message says about its own request: a suffix of the address, and a timeout. See docs/design/endpoints.md, "A message names no other
-- place". They are members of the arguments of its delivery, so that other jobs pay nothing.

-- Those members of the arguments; an empty object if nothing was said.
create function forebay._request_args(p_suffix text, p_seconds numeric) returns jsonb
language sql immutable
as $$
    select case when p_suffix is not null then jsonb_build_object('url_suffix', p_suffix) else '{}' end
           || case when p_seconds is not null then jsonb_build_object('timeout', p_seconds) else '{}' end
$$;


-- Refuse what the endpoint does not let a message say about its request. p_index is the place of the message in a bulk call, or null.
--
-- Errors: JQ001.
create function forebay._check_request(e forebay.endpoint, p_suffix text, p_seconds numeric, p_index bigint default null) returns void
language plpgsql stable
as $$
declare
    v_most constant numeric := case when e.sink = 'http' and jsonb_typeof(e.config -> 'timeout_max') = 'number' then (e.config ->> 'timeout_max')::numeric end;
    v_bad  record;
begin
    select p.* into v_bad
    from (values
        (p_suffix is not null and (e.sink = 'http' and e.config -> 'url_suffixes' = 'true') is not true, 'url_suffix',
         format('endpoint %s takes no url_suffix', quote_literal(e.name)),
         'An operator allows it: url_suffixes true in the config of an http endpoint, with alter_endpoint().'),
        (p_suffix is not null and forebay._is_url_suffix(p_suffix) is not true, 'url_suffix',
         'url_suffix is not a path that only goes down',
         'Begin it with /. It has at most 500 letters, digits, and - . _ ~ : , = + between single slashes, and no part of dots only. Put values with other characters into the payload.'),
        (p_seconds is not null and v_most is null, 'timeout', format('endpoint %s takes no timeout of a message', quote_literal(e.name)),
         'An operator allows it: timeout_max, in seconds, in the config of an http endpoint, with alter_endpoint().'),
        (p_seconds is not null and (p_seconds between 0.1 and v_most) is not true, 'timeout',
         format('timeout is outside 0.1 s to %s s, the timeout_max of endpoint %s', v_most, quote_literal(e.name)), 'Give another timeout, or none.'))
        p (is_bad, field, problem, hint)
    where p.is_bad limit 1;
    if found then
        raise exception using errcode = 'JQ001', column = v_bad.field,
            message = case when p_index is not null then format('message %s: ', p_index) else '' end || v_bad.problem,
            detail = case when p_index is not null then jsonb_build_object('endpoint', e.name, 'index', p_index)
                          else jsonb_build_object('endpoint', e.name) end,
            hint = 'Nothing was sent. ' || v_bad.hint;
    end if;
end
$$;


-- Is a text a suffix of an address that leads below it, however a server reads it? src/forebay/sinks/_suffix.py has the same rule.
create function forebay._is_url_suffix(p_suffix text) returns boolean
language sql immutable
as $$ select length(p_suffix) <= 500 and p_suffix ~ '^(/(?![.]+(/|$))[A-Za-z0-9._~:,=+-]+)+/?$' $$;
