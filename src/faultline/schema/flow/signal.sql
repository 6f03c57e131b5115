-- Send a signal to a job: by its id, or by its idempotency key. Returns whether it is new: the same `key` counts once per job.
-- Before: the job has not ended. After: the signal is kept until the job asks for it, also if it does not wait for it yet.
-- Signals of one sender are received in the order in which they were sent.
--
-- `for_call` sends it to one wait of the job, by its number: an answer that comes too late is refused and does not answer the next
-- question. With `only_queues`, a job of any other queue is not found. With `sent_by`, the journal records who sent it.
--
-- Only inserts: no row of the job is locked, however long the sender's transaction takes. Two with the same key wait for each
-- other.
create or replace function faultline.signal(
  job_id uuid,
  name text,
  payload jsonb default null,
  key text default null,
  for_call text default null,
  sent_by text default null,
  idempotency_key text default null,
  only_queues text[] default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  kept_max constant integer := 1000;
  signed constant jsonb := faultline.signature(signal.sent_by);
  bytes_max constant integer := (select s.args_bytes_max from faultline.settings s);
  at constant timestamptz := faultline.clock();
  target uuid := signal.job_id;
  job record;
begin
  if coalesce(length(signal.name), 0) not between 1 and 200 then
    raise exception 'the name of a signal has 1 to 200 characters, not %', coalesce(length(signal.name), 0)
      using errcode = 'FL005';
  elsif faultline.is_unreadable(signal.name) or faultline.is_unreadable(signal.key) then
    raise exception 'the name and the key of a signal must not contain control characters' using errcode = 'FL005';
  elsif length(signal.key) not between 1 and 500 then
    raise exception 'signal "%": its key has % characters; it must have 1 to 500', signal.name, length(signal.key)
      using errcode = 'FL005';
  elsif (signal.job_id is null) = (signal.idempotency_key is null) then
    raise exception 'signal "%" needs the id of a job, or the idempotency key of one', signal.name using errcode = 'FL005';
  elsif octet_length(signal.payload::text) > bytes_max then
    raise exception 'signal "%": its payload has % bytes, more than the limit of %',
      signal.name, octet_length(signal.payload::text), bytes_max using errcode = 'FL005';
  end if;
  if signal.idempotency_key is not null then
    select k.job_id into target from faultline.keys k where k.key = signal.idempotency_key;
    if not found then
      raise exception 'no job has the idempotency key "%"', signal.idempotency_key
        using errcode = 'FL004', hint = 'it was never enqueued in this database, or it was pruned after its retention time';
    end if;
  end if;
  if signal.key is not null and exists (
    select from faultline.signals s where s.job_id = target and s.key = signal.key
  ) and (signal.only_queues is null or exists (
    select from faultline.jobs j where j.id = target and j.queue = any (signal.only_queues)
  )) then
    -- It was sent before. Whether the job has ended since makes no difference.
    return false;
  end if;
  -- Read without a lock: a job that ends at this moment keeps a signal that nobody receives.
  select j.state, j.fencing_token into job
  from faultline.open_jobs j
  where j.id = target and (signal.only_queues is null or j.queue = any (signal.only_queues));
  if not found then
    perform faultline.not_open(target, 'signalled', signal.only_queues);
  elsif job.state not in ('queued', 'running') then
    raise exception 'job % is % and receives no signals', target, job.state
      using errcode = 'FL002', hint = 'retry the job first';
  end if;
  if signal.for_call is not null then
    perform faultline.check_wait(target, signal.for_call, signal.name, at);
  end if;
  if (
    select count(*)
    from (select from faultline.signals s where s.job_id = target and s.received_by is null limit kept_max) k
  ) >= kept_max then
    raise exception 'job % keeps % signals that it has not received, and takes no more', target, kept_max
      using errcode = 'FL007', hint = 'send it less often, or have the job receive what it is sent';
  end if;
  perform faultline.require_synchronous_commit();
  insert into faultline.signals (job_id, name, payload, key, for_call, sent_at, sent_by)
  values (
    target, signal.name, nullif(signal.payload, 'null'), signal.key, signal.for_call, at, signed ->> 'by'
  )
  on conflict (job_id, key) where key is not null do nothing;
  if not found then
    return false;
  end if;
  insert into faultline.nudges (job_id, kind, at) values (target, 0, at);
  if signal.sent_by is not null then
    insert into faultline.journal (at, job_id, event, fencing_token, detail)
    values (
      at, target, 'signalled', job.fencing_token,
      jsonb_build_object('name', signal.name, 'key', signal.key, 'for_call', signal.for_call) || signed
    );
  end if;
  perform faultline.wake_resolvers();
  return true;
end
$$;
