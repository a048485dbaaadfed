-- In another encoding a job could hold text that workers cannot read, and the claim of its lane would fail each time.
do $$
begin
    if current_setting('server_encoding') <> 'UTF8' then
        raise exception using errcode = 'JQ020',
            message = format('database %s has the encoding %s; Forebay needs UTF8', current_database(), current_setting('server_encoding')),
            hint = 'Use a database that was created with encoding UTF8.';
    end if;
end
$$;

create schema forebay;
revoke all on schema forebay from public;

comment on schema forebay is 'Forebay, a transactional job queue and outbox. Call its functions; never write to its tables.';
