-- Leadership: "held until" in milliseconds since 1970, and by whom in the lowest 20 bits. What one worker at a time does for all:
-- duty 0 is the maintenance, duty N looks out for what is ready for group N. Flag sequences like the wake-ups.
create sequence forebay.leader_0 as bigint cache 1;
