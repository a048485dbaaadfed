-- What only the version before calls.

drop function forebay.claim_v1(bigint, bigint, bigint, bigint, bigint, integer);
drop schema forebay_set_aside cascade;
