-- Wake-ups: "a worker sleeps until", in milliseconds since 1970, one flag sequence for each hash of a queue name.
-- They are sequences because a sequence is read and set outside transactions and leaves no dead rows.
do $$
begin
    for i in 0..15 loop
        execute format('create sequence forebay.wakeup_%s as bigint cache 1', i);
    end loop;
end
$$;
