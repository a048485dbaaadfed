-- The column that has moved; the functions that used it were replaced before, so that no call is within one of them.
-- locks: failure

alter table forebay.failure drop column traceback;
