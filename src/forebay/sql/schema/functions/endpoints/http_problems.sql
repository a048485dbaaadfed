-- What is wrong with the values in the configuration of an HTTP endpoint: what the class of the sink would refuse, and an address that is
-- known not to be public. A problem repeats the scheme and the host of the address, and no other value: it may be a secret.
create function forebay._http_problems(p_config jsonb) returns table (field text, problem text, hint text)
language plpgsql stable
-- planner: indexed
as $$
declare
    c        constant jsonb := jsonb_strip_nulls(p_config);
    v_method constant text := coalesce(c ->> 'method', 'POST');
begin
    if p_config ? 'url' then
        return query select 'config.url', 'config: url ' || u.problem, u.hint from forebay._url_problem(p_config -> 'url') u where u.problem is not null;
    end if;
    return query
    select 'config.' || o.name, format('config: %s is none of %s', o.name, array_to_string(o.values, ', ')), null
    from (values ('method', '{POST,PUT,PATCH,GET,DELETE}'::text[]), ('batch', '{one,array}'), ('cloudevents', '{binary,structured}')) o (name, values)
    where c ? o.name and (jsonb_typeof(c -> o.name) = 'string' and c ->> o.name = any (o.values)) is not true;
    return query
    select 'config.' || r.name, format('config: %s is not a %snumber from %s to %s', r.name, case when r.is_whole then 'whole ' else '' end, r.least, r.most), null
    from (values ('concurrency', 1, 1000, true), ('connect_timeout', 0.1, 60, false), ('timeout', 0.1, 300, false),
                 ('response_bytes_max', 1, 1000000, true), ('timeout_max', 0.1, 300, false), ('redirects', 0, 10, true)) r (name, least, most, is_whole)
    where c ? r.name and (case when jsonb_typeof(c -> r.name) = 'number'
                               then (c ->> r.name)::numeric between r.least and r.most
                                    and (not r.is_whole or (c ->> r.name)::numeric = trunc((c ->> r.name)::numeric)) end) is not true;
    return query
    select 'config.' || p.name, 'config: ' || p.name || ' ' || p.problem, p.hint
    from (values
        ('show_response', 'is not true or false', null, c ? 'show_response' and jsonb_typeof(c -> 'show_response') <> 'boolean'),
        ('url_suffixes', 'is not true or false', null, c ? 'url_suffixes' and jsonb_typeof(c -> 'url_suffixes') <> 'boolean'),
        ('url_suffixes', 'has no meaning for arrays: one request has many messages', 'Give batch "one".',
         c ->> 'batch' = 'array' and c -> 'url_suffixes' = 'true'),
        ('timeout_max', 'has no meaning for arrays: one request has many messages', 'Give batch "one".', c ->> 'batch' = 'array' and c ? 'timeout_max'),
        ('redirect_hosts', 'is not a list of at most 20 hosts', 'Such as ["hooks.example", "*.eu.example:8443"].',
         c ? 'redirect_hosts' and not forebay._are_hosts(c -> 'redirect_hosts')),
        ('redirect_hosts', 'has no meaning without redirects', 'Give redirects, such as 3.',
         c -> 'redirect_hosts' -> 0 is not null and coalesce(c -> 'redirects', '0') = '0'),
        ('source', 'is missing: events of cloudevents have one', 'Give source, such as "/shop".', c ? 'cloudevents' and not c ? 'source'),
        ('source', 'is not a text of 1 to 1000 printable characters', null,
         c ? 'source' and (jsonb_typeof(c -> 'source') = 'string' and length(c ->> 'source') between 1 and 1000 and c ->> 'source' !~ E'[{control}]') is not true),
        ('source', 'has no meaning without cloudevents', 'Give cloudevents "binary" or "structured".', c ? 'source' and not c ? 'cloudevents'),
        ('cloudevents', 'is binary, which has no arrays', 'Give "structured" for batch "array".',
         c ->> 'batch' = 'array' and c ->> 'cloudevents' = 'binary'),
        ('method', 'sends no body, which an array or a structured event needs', null,
         v_method in ('GET', 'DELETE') and (c ->> 'batch' = 'array' or c ->> 'cloudevents' = 'structured')),
        ('headers', 'is not an object of texts', null,
         c ? 'headers' and (jsonb_typeof(c -> 'headers') = 'object'
                            and not jsonb_path_exists(c -> 'headers', 'strict $.* ? (@.type() != "string")')) is not true))
        p (name, problem, hint, is_wrong)
    where p.is_wrong;
    return query select 'config.' || p.name, 'config: ' || p.name || ' ' || p.problem, p.hint from forebay._http_tls_problems(c) p;
    return query select 'config.' || p.name, 'config: ' || p.name || ' ' || p.problem, p.hint from forebay._http_login_problems(c) p;
    if jsonb_typeof(c -> 'headers') = 'object' then
        return query
        select 'config.headers', format('config: headers has %s, %s', quote_literal(left(k, 40)),
                   case when k !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' then 'which HTTP does not allow'
                        when lower(k) = 'authorization' then 'which is a secret' else 'which the sink sets' end),
               case when lower(k) = 'authorization' then 'Give auth, a reference to a secret, such as "bearer env:NAME".' end
        from jsonb_object_keys(c -> 'headers') k
        where k !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' or lower(k) like 'forebay-%'
           or c ? 'cloudevents' and (lower(k) like 'ce-%' or lower(k) = 'content-type')
           or lower(k) in ('accept-encoding', 'authorization', 'connection', 'content-encoding', 'content-length', 'expect', 'host', 'keep-alive',
                           'proxy-authenticate', 'proxy-authorization', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade',
                           'webhook-id', 'webhook-signature', 'webhook-timestamp');
    end if;
end
$$;


-- Is a JSON value a list of hosts, as far as SQL knows their form? The sink knows all of it.
create function forebay._are_hosts(p_hosts jsonb) returns boolean
language sql immutable
as $$
    select case when jsonb_typeof(p_hosts) = 'array'
                then jsonb_array_length(p_hosts) <= 20
                     and not exists (select from jsonb_array_elements(p_hosts) h
                                     where (jsonb_typeof(h) = 'string' and length(h #>> '{}') <= 300 and h #>> '{}' ~ E'^[^\\s\\\\@/?#{control}]+(/[0-9]{1,3})?$') is not true)
                else false end
$$;


-- The problem with the address of an HTTP endpoint, after "url"; null: none is known. What a name leads to is not known here.
create function forebay._url_problem(p_url jsonb, out problem text, out hint text)
language plpgsql stable
-- planner: indexed
as $$
declare
    v_url   constant text := p_url #>> '{}';
    -- Scheme, authority, and the rest.
    v_parts constant text[] := regexp_match(v_url, '^([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)$');
    v_host  text[] := regexp_match(v_parts[2], E'^(\\[[0-9A-Fa-f:.]+\\]|[^]@<>"%:[]+?)[.]?(?::([0-9]{1,5}))?$');
    v_port  integer;
begin
    if jsonb_typeof(p_url) <> 'string' or v_parts is null then
        problem := 'is not an address that begins with https://';
        hint := 'Write https://HOST/PATH.';
    elsif v_url ~ E'[\\x01-\\x20\\x7f-\\xa0\\\\]' then
        problem := 'contains a space, a control character or a backslash';
        hint := 'Write such characters of the path as %XX.';
    elsif lower(v_parts[1]) not in ('https', 'http') then
        problem := format('has the scheme %s, not https or http', left(v_parts[1], 20));
        hint := 'Write https://HOST/PATH. Other places have other sinks.';
    elsif position('@' in v_parts[2]) > 0 then
        problem := 'contains a user or a password';
        hint := 'Give auth, a reference to a secret, such as "basic env:NAME".';
    elsif position('#' in v_url) > 0 then
        problem := 'contains a fragment';
        hint := 'Leave out # and what follows it.';
    elsif v_parts[3] ~ E'[^\\x21-\\x7e]' then
        problem := 'has a path or a query with other characters than ASCII';
        hint := 'Write them as %XX.';
    elsif v_host is null or (coalesce(v_host[2], '1')::integer between 1 and 65535) is not true then
        problem := 'has no host and port that can be called';
        hint := 'Write https://HOST:PORT/PATH.';
    else
        v_port := coalesce(v_host[2]::integer, case lower(v_parts[1]) when 'https' then 443 else 80 end);
        problem := forebay._host_problem(lower(trim('[]' from v_host[1])), v_port);
        hint := 'Deliverers call public addresses, and those that their setting endpoint_hosts lists. forebay.allow_hosts() tells it to the database.';
    end if;
    if problem is null then
        hint := null;
    end if;
end
$$;


-- The problem with a host of an address, after "url"; null: it is a name, or an address that may be called.
create function forebay._host_problem(p_host text, p_port integer) returns text
language plpgsql stable
-- planner: indexed
as $$
declare
    v_address inet;
begin
    if p_host ~ '(^|[.])([0-9]+|0x[0-9a-f]*)$' or position(':' in p_host) > 0 then
        begin
            v_address := case when p_host !~ '/' then p_host::inet end;
        exception when data_exception then
            null;
        end;
        -- An IPv4 address in another form, which some programs read and others do not.
        if v_address is null or family(v_address) = 4 and host(v_address) <> p_host then
            return format('has the host %s, which programs read in different ways', left(p_host, 60));
        elsif forebay._is_public(v_address) or forebay._allows_host(p_host, v_address, p_port) then
            return null;
        end if;
        return format('has the address %s, which is not public', host(v_address));
    elsif (p_host = 'localhost' or p_host like '%.localhost') and not forebay._allows_host(p_host, null, p_port) then
        return format('has the host %s, which is this machine', left(p_host, 60));
    end if;
    return null;
end
$$;


-- May deliverers call an address by default? The networks are those of src/forebay/sinks/_destination.py.
create function forebay._is_public(p_address inet) returns boolean
language sql immutable
as $$
    select case family(p_address)
        when 4 then not p_address <<= any ('{0.0.0.0/8,10.0.0.0/8,100.64.0.0/10,127.0.0.0/8,169.254.0.0/16,172.16.0.0/12,192.0.0.0/24,192.0.2.0/24,192.88.99.0/24,192.168.0.0/16,198.18.0.0/15,198.51.100.0/24,203.0.113.0/24,224.0.0.0/4,240.0.0.0/4,168.63.129.16/32}'::inet[])
        when 6 then p_address <<= any ('{2000::/3,64:ff9b::/96}'::inet[]) and not p_address <<= any ('{2001::/23,2001:db8::/32,2002::/16,3fff::/20}'::inet[]) end
$$;


-- Does the list of the deliverers have a host, or a network with its address? A network has no metadata service in it.
create function forebay._allows_host(p_host text, p_address inet, p_port integer) returns boolean
language plpgsql stable
-- planner: indexed
as $$
declare
    v_entry text[];
    v_net   inet;
begin
    for v_entry in
        select regexp_match(lower(h.host), E'^(?:\\[([0-9a-f:./]+)\\]|([0-9a-f:./]*:[0-9a-f:./]*:[0-9a-f:./]*)|([^:]+))(?::([0-9]{1,5}))?$')
        from forebay.endpoint_host h
    loop
        continue when v_entry is null or v_entry[4]::integer <> p_port;
        v_net := null;
        begin
            v_net := coalesce(v_entry[1], v_entry[2], v_entry[3])::inet;
        exception when data_exception then
            null;
        end;
        if p_address is not null and v_net is not null and family(v_net) = family(p_address) and p_address <<= v_net
           and (masklen(v_net) = case family(v_net) when 4 then 32 else 128 end
                or p_address <> all ('{169.254.169.254,169.254.170.2,169.254.170.23,168.63.129.16,100.100.100.200,192.0.0.192,fd00:ec2::254,fd00:ec2::23,fd20:ce::254}'::inet[])) then
            return true;
        elsif v_net is null and (p_host = v_entry[3] or v_entry[3] like '*.%' and right(p_host, length(v_entry[3]) - 1) = substr(v_entry[3], 2)) then
            return true;
        end if;
    end loop;
    return false;
end
$$;
