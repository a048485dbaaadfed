-- A column of the log and of the lanes.
-- locks: lane, log

alter table forebay.lane add column note text;
alter table forebay.log add column source text;
