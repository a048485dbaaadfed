-- grant: worker

-- Resign from those of the duties that `p_holder` leads, and notify listeners: `NOTIFY
-- forebay_wakeup` with the duty's number as payload.
--
-- Transaction: any; meant to be autocommitted.
--
-- Inside: this is not a producer's transaction, so it may notify where enqueues may not.
create function forebay.resign_v1(p_holder integer, p_duties bigint[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_duty bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    foreach v_duty in array p_duties loop
        if forebay._leader_of(v_duty) = p_holder then
            perform setval(forebay._leader_flag(v_duty), 1);
            if pg_notification_queue_usage() < 0.25 then
                perform pg_notify('forebay_wakeup', v_duty::text);
            end if;
        end if;
    end loop;
end
$$;
