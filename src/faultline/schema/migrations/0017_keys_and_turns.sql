-- A unique key is one of its task: the job of another task does other work.
alter table faultline.unique_keys add column task text not null default '';
update faultline.unique_keys k
set task = coalesce(
  (select j.task from faultline.open_jobs j where j.id = k.job_id),
  (select f.task from faultline.ledger f where f.job_id = k.job_id),
  ''
);
alter table faultline.unique_keys drop constraint unique_keys_pkey;
alter table faultline.unique_keys add constraint unique_keys_pkey primary key (queue, key, task);
-- What `prune` walks. Those that must be kept, for a period or because their job is open, stand behind those that need not.
drop index faultline.unique_keys_at;
create index unique_keys_kept on faultline.unique_keys ((greatest(at, until)));

-- The queues that the code of a worker declares. Null: it does not say.
alter table faultline.workers add column limits text[];

-- Where groups come in: not before the shard's turn, and each grant moves it a little. So groups that hold nothing are served in
-- the order in which they came in, and claims read from the shard's turn on, past no group that was served.
alter table faultline.shards add column entry double precision not null default 0;
update faultline.shards set entry = turn;
update faultline.groups g
set turn = s.turn
from faultline.shards s
where g.queue = s.queue and g.shard = s.shard and g.load = 0 and g.turn < s.turn;
