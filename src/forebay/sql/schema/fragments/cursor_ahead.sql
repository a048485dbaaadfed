-- For a claim that knows the cursor, the lane's last snapshot (c.stop) and the present one (c.now).

if pg_snapshot_xmax(c.stop) > pg_snapshot_xmax(c.now) then
    raise exception using errcode = 'JQ030',
        message = format('the cursor of lane %s is ahead of this cluster: xid %s, now %s',
                         p_lane, pg_snapshot_xmax(c.stop), pg_snapshot_xmax(c.now)),
        hint = 'This database was restored from another cluster. Run forebay adopt --resume or --discard.';
end if;
