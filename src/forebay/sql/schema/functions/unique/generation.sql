-- Append a generation; returns its job's number, or null when another transaction has made it meanwhile.
--
-- Errors: JQ004 with p_raise, when another open transaction is making it; 40001 in a REPEATABLE READ transaction when another
--   transaction has made it.
create function forebay._make_generation(
    p_queue text, p_mode "char", p_key text, p_last forebay.unique_key, p_raise boolean, p_where text, p_lane bigint, p_is_deferred boolean,
    p_expires_at timestamptz, p_free_at timestamptz, p_first_at timestamptz, p_payload bytea, p_origin bigint)
returns bigint
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_timeout constant text := current_setting('lock_timeout');
    v_gen     constant bigint := coalesce(p_last.gen, 0) + 1;
    v_job_id  bigint;
begin
    if not p_raise then
        insert into forebay.unique_key (
            queue, mode, key, gen, lane, is_deferred, taken_at, expires_at, free_at, first_at, payload, origin)
        values (
            p_queue, p_mode, p_key, v_gen, p_lane, coalesce(p_is_deferred, false), forebay._now(), p_expires_at, p_free_at,
            p_first_at, p_payload, coalesce(p_origin, v_gen))
        on conflict do nothing
        returning job_id into v_job_id;
        return v_job_id;
    end if;
    begin
        perform set_config('lock_timeout', '10ms', true);
        v_job_id := forebay._make_generation(
            p_queue, p_mode, p_key, p_last, false, p_where, p_lane, p_is_deferred, p_expires_at, p_free_at, p_first_at, p_payload, p_origin);
        perform set_config('lock_timeout', v_timeout, true);
        return v_job_id;
    exception when lock_not_available then
        perform forebay._raise_busy(p_key, p_where);
    end;
end
$$;
