-- Leadership: "held until" in milliseconds since 1970, and the holder in the lowest 20 bits. One worker leads each duty:
-- duty 0 is maintenance, duty N watches for ready jobs of group N. Flag sequences like the wake-ups; a step is 250 ms by the same holder.
create sequence forebay.leader_0 as bigint increment 262144000 cache 1;
-- Duty -1: decides the instants of schedules.
create sequence forebay."leader_-1" as bigint increment 262144000 cache 1;

-- Until when, in milliseconds since 1970, the leader of maintenance does not look for due jobs: who adds a job that is due earlier notifies it.
create sequence forebay.promoter_seq as bigint increment 250 cache 1;
