-- Drop the moved column. The functions that used it were replaced earlier, so no call is running one of them.
-- locks: failure

alter table forebay.failure drop column traceback;
