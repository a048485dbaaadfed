-- Is the call alone: autocommitted, READ COMMITTED, with no earlier write? See forebay._require_alone().
create function forebay._is_alone() returns boolean
language sql volatile
as $$
    select current_setting('transaction_isolation') = 'read committed'
       and pg_current_xact_id_if_assigned() is null
       and statement_timestamp() - transaction_timestamp() <= interval '3 seconds'
$$;


-- Raise unless the call is alone: autocommitted, READ COMMITTED, with no earlier write.
--
-- Claims, seals and promotions read what other transactions committed up to this very statement. An older snapshot or an
-- already drawn xid would break them, and their locks must not last. A function cannot see that it runs in a transaction
-- block; it can see that the transaction is older than the statement. A difference of up to three seconds is accepted: the
-- parts of one statement arrive one by one, and a busy machine delays them.
--
-- Errors: JQ012.
create function forebay._require_alone(p_what text) returns void
language plpgsql volatile
as $$
begin
    if not forebay._is_alone() then
        raise exception using
            errcode = 'JQ012',
            message = format('%s must be called alone, in its own READ COMMITTED transaction', p_what),
            detail = jsonb_build_object('function', p_what),
            hint = 'Call it on a connection in autocommit mode, as a separate statement.';
    end if;
end
$$;
