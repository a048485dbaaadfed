-- An index on a large table that all workers append to.
-- outside a transaction

drop index concurrently if exists forebay.settlement_by_time;
create index concurrently settlement_by_time on forebay.settlement (settled_at);
