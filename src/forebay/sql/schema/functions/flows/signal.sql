-- grant: producer, worker, operator

-- Send a signal, in the transaction of the caller: the flow that waits for this name and key
-- continues after the commit. It may begin to wait later: a signal is kept until a flow takes it, at
-- most 30 days. Returns true for the first signal of the pair; false, if another one waits to be
-- taken, and this one was not kept.
--
-- Parameters:
--   name     what the flow waits for, as in `ctx.wait(name)`
--   key      which flow: the key of its wait, or, without one, the id of its job
--   payload  what the wait returns
--
-- Example:
--   select forebay.signal('approval', '42', '{"by": "Ada"}');
--
-- Errors: JQ001 a name or key that is empty, too long or has control characters; JQ002 a payload
--   larger than `args_bytes_max`.
-- Transaction: any. Another transaction with a signal of the same pair waits for its end.
-- pages: 40
create function forebay.signal(name text, key text, payload jsonb default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_variable
declare
    v_bytes constant bigint := octet_length(payload::text);
    v_most  constant bigint := forebay._setting_value('args_bytes_max');
    v_bad   text;
begin
    v_bad := case when name is null or length(name) not between 1 and 200 or name ~ E'[{control}]' then 'name'
                  when key is null or length(key) not between 1 and 200 or key ~ E'[{control}]' then 'key' end;
    if v_bad is not null then
        raise exception using errcode = 'JQ001', column = v_bad,
            message = format('%s %s must have 1 to 200 characters, none of them a control character', v_bad,
                             coalesce(quote_literal(left(case v_bad when 'name' then name else key end, 40)), 'null')),
            hint = 'No signal was sent.';
    elsif v_bytes > v_most then
        raise exception using errcode = 'JQ002', message = format('the payload has %s bytes, the limit is %s', v_bytes, v_most),
            detail = jsonb_build_object('bytes', v_bytes, 'limit', v_most),
            hint = 'Store the data in a table and pass its key, or raise args_bytes_max.';
    end if;
    insert into forebay.signal as s (name, key, payload, sent_at, role) values (name, key, nullif(payload, 'null'), forebay._now(), session_user)
    on conflict on constraint signal_pkey do nothing;
    if not found then
        return false;
    end if;
    perform forebay._wake_flows_later(jsonb_build_object('name', name, 'key', key));
    return true;
end
$$;
