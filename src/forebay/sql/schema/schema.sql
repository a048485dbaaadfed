create schema forebay;
revoke all on schema forebay from public;

comment on schema forebay is 'Forebay, a transactional job queue and outbox. Call its functions; never write to its tables.';
