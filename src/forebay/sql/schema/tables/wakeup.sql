-- Wake-ups: "a worker sleeps until", in milliseconds since 1970, one flag sequence for each hash of a queue name.
-- They are sequences because a sequence is read and set outside transactions and leaves no dead rows. The increment is the step of
-- forebay._advance_flag(). No sequence here is unlogged: PostgreSQL can lose the page of one at a promotion, and then each read fails.
do $$
begin
    for i in 0..15 loop
        execute format('create sequence forebay.wakeup_%s as bigint increment 250 cache 1', i);
    end loop;
end
$$;
