-- Posts: "held until" in milliseconds since 1970, and by whom in the lowest 20 bits. What one worker at a time does for all:
-- post 0 is the upkeep, post N looks out for what is ready for group N. Registers like the bells.
create sequence forebay.post_0 as bigint cache 1;
