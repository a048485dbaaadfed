create schema forebay;
revoke all on schema forebay from public;

comment on schema forebay is 'Forebay, the transactional job log. Call its functions; never write its tables.';
