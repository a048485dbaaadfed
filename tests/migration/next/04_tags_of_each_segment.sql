-- Existing segments get the same index.
-- for each segment

drop index concurrently if exists forebay.log_{segment}_tag;
create index concurrently log_{segment}_tag on forebay.log_{segment} (tag) where tag is not null;
