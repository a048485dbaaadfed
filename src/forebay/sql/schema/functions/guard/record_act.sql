-- grant: operator

-- Record an act before it is done, for `forebay guard`; returns the number of the event. Commit
-- before you act. The record is durable on this server whatever `synchronous_commit` is; it does
-- not wait for a standby, since a standby that hangs may be the reason for the act. `p_action`:
-- cancel, terminate or rollback prepared.
--
-- Errors: JQ001 an unknown action, or no server, holder, name or reason.
-- Transaction: any; meant to be autocommitted.
-- See: docs/howto/guard-against-long-transactions.md
--
-- Inside: Invariant "no act without its record".
create function forebay.record_act(
    p_server text, p_action text, p_holder text, p_name text, p_reason text, p_user text default null,
    p_application text default null, p_database text default null, p_state text default null,
    p_xact_start timestamptz default null, p_seconds double precision default null, p_age bigint default null,
    p_query text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_event_id bigint;
begin
    if (p_action in ('cancel', 'terminate', 'rollback prepared')) is not true then
        raise exception using errcode = 'JQ001', column = 'action',
            message = format('unknown action %s of the guard', coalesce(quote_literal(left(p_action, 40)), 'null'));
    elsif p_server is null or p_holder is null or p_name is null or p_reason is null then
        raise exception using errcode = 'JQ001', message = 'an act needs server, holder, name and reason';
    end if;
    perform set_config('synchronous_commit', 'local', true);
    insert into forebay.guard_event (event_id, at, acted_as, server, action, holder, name, user_name, application, database_name,
                                     state, xact_start, seconds, age, reason, query)
    values (forebay._random_name(), forebay._now(), session_user, left(p_server, 200), p_action, left(p_holder, 40), left(p_name, 200),
            p_user, p_application, p_database, left(p_state, 40), p_xact_start, p_seconds, p_age,
            left(p_reason, 200), left(p_query, 200))
    returning event_id into v_event_id;
    return v_event_id;
end
$$;
