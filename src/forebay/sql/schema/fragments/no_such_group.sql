-- For a claim.

raise exception using errcode = 'JQ014',
    message = format('there is no group %s', p_group_id),
    hint = 'Open the group with forebay.open_group() first.';
