-- grant: worker

-- Leave posts that the caller holds, and tell everybody who listens: NOTIFY forebay_bell with the post's number.
--
-- It is no producer's transaction, so that it may notify where enqueues may not.
create function forebay.leave_posts_v1(p_holder integer, p_posts bigint[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_post bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    foreach v_post in array p_posts loop
        if forebay._holder(v_post) = p_holder then
            perform setval(forebay._register(v_post), 1);
            if pg_notification_queue_usage() < 0.25 then
                perform pg_notify('forebay_bell', v_post::text);
            end if;
        end if;
    end loop;
end
$$;
