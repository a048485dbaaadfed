-- grant: operator, reader, worker

-- Find out whether a write succeeds now: create a file, write a page to it, and undo both. Returns
-- the SQLSTATE and the message of what failed, such as `53100`, the disk is full; null, if the
-- write succeeded, and if another session probes at this moment.
--
-- Transaction: the caller's; what it writes is undone before it returns.
-- See: docs/design/alerts.md
--
-- Inside: a row in an existing page would succeed on a full disk. truncate gives the table a new
-- file, so the row needs a new page; the subtransaction removes the file again. A crash leaves at
-- most an empty table.
create function forebay.probe_write(out failed_sqlstate text, out failed_message text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
begin
    lock table forebay.write_probe in access exclusive mode nowait;
    truncate forebay.write_probe;
    insert into forebay.write_probe default values;
    raise exception using errcode = 'UNDO0', message = 'undo';
exception
    when sqlstate 'UNDO0' or lock_not_available then
        return;
    when query_canceled then
        raise;
    when others then
        failed_sqlstate := sqlstate;
        failed_message := sqlerrm;
end
$$;
