-- Wake-ups: "a worker sleeps until", in milliseconds since 1970, one flag sequence for each hash of a queue name.
-- They are sequences because a sequence is read and set outside transactions and leaves no dead rows. Unlogged: setting a logged one
-- draws a transaction id, and an idle worker sets one at each poll. After a crash of the server they say that no worker sleeps, which
-- is true then.
do $$
begin
    for i in 0..15 loop
        execute format('create unlogged sequence forebay.wakeup_%s as bigint cache 1', i);
    end loop;
end
$$;
