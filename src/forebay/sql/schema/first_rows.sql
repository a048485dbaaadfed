-- The first rows of a new schema: its secret, its database, the grants, and segments, so that the first enqueue can write.

-- gen_random_uuid() draws from a cryptographic source: 122 bits, of which the first and the last 32 have no fixed ones.
select setval('forebay.lane_secret', ('x' || left(u.id, 8) || right(u.id, 8))::bit(64)::bigint & -2)
from (select gen_random_uuid()::text as id offset 0) u;

-- No lane was retired yet.
select setval('forebay.lane_horizon', 1);

insert into forebay.cluster (system_identifier, database_oid)
select i.system_identifier, i.database_oid from forebay._identity() i;

insert into forebay.setting (name, value) select r.name, r.built_in from forebay._setting_rules() r;

-- The sinks of the library. A test compares them with their classes.
insert into forebay.sink_type (name, settings, required, is_ours) values
    ('bullmq', '{url,queue,tasks,prefix,attempts,backoff,keep_completed,keep_failed,connect_timeout}', '{url}', true),
    ('celery', '{url,queue,tasks,connect_timeout}', '{}', true),
    ('dramatiq', '{url,queue,tasks,namespace,max_priority,connect_timeout}', '{url}', true),
    ('forebay', '{url,queue,kinds,remember_days,connect_timeout}', '{url}', true),
    ('http', '{url,method,headers,auth,secrets,batch,cloudevents,source,concurrency,connect_timeout,timeout,response_bytes_max,show_response,url_suffixes,timeout_max,redirects,redirect_hosts,cert_file,key_file,key_passphrase,pinned,token_url,client_id,client_secret,scope,audience,token_auth,aws_service,aws_region,aws_key_id,aws_secret_key,aws_session_token}', '{url}', true),
    ('kafka', '{url,topic,create,sasl_mechanism,connect_timeout,delivery_timeout}', '{url,topic}', true),
    ('mqtt', '{url,topic,password,retain,needs_subscriber,ack_timeout,connect_timeout}', '{url,topic}', true),
    ('nats', '{url,subject,stream,ack_timeout,connect_timeout,credentials,nkey,token}', '{url,subject}', true),
    ('rabbitmq', '{url,routing_key,exchange,persistent,confirm_timeout,connect_timeout,heartbeat}', '{url,routing_key}', true),
    ('redis-list', '{url,key,connect_timeout}', '{url,key}', true),
    ('redis-stream', '{url,stream,create,connect_timeout}', '{url,stream}', true),
    ('rq', '{url,queue,serializer,job_timeout,result_ttl,failure_ttl,connect_timeout}', '{url}', true),
    ('sidekiq', '{url,queue,retry,connect_timeout}', '{url}', true),
    ('sqs', '{queue_url,region,endpoint_url,requests,connect_timeout,read_timeout}', '{queue_url}', true);
insert into forebay.event_type (name, description, created_at)
values ('forebay.endpoint_failing', 'An endpoint fails and will be disabled: endpoint, percent of the time until then, since, error.', forebay._now()),
       ('forebay.alert', 'An alert fired or cleared: state, code, subject, group, severity, problem, hint, since.', forebay._now());

select forebay._grant();

select forebay.extend_v1();
