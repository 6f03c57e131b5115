-- Begin a new job with the history of another: the calls before `before_number`, or all that have ended. Returns its id.
-- Before: the other job exists, in whatever state; nothing of it is locked or changed. After: a queued job of the same task and
-- queue, due now, that is the root of a flow of its own, with copies of the calls that had ended by then and of the steps
-- recorded before. Its tokens begin above all tokens in that history. `args`, the text of a JSON object, replaces its arguments.
-- Unknown jobs and numbers are FL004, invalid arguments FL005; a history that cannot be gone on with is FL002.
--
-- A copy needs nothing of the other flow, which may be pruned: the results of jobs are copied with the calls that took them.
-- A call whose failure ended the job is not copied: the fork makes it anew, as `retry` would.
-- Sent again with the same `id`, nothing happens.
create or replace function faultline.fork(
  job_id uuid,
  before_number text default null,
  args text default null,
  id uuid default null,
  by text default null,
  reason text default null,
  only_queues text[] default null
) returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  bytes_max constant bigint := 67108864;
  at constant timestamptz := faultline.clock();
  signed constant jsonb := faultline.signature(fork.by, fork.reason);
  fork_id constant uuid := coalesce(fork.id, faultline.new_id(1));
  original record;
  cut numeric[];
  cut_at timestamptz;
  document json;
  token bigint;
  stopped bigint[] := '{}';
  -- See `doubtful`.
  doubtful_from bigint;
begin
  perform faultline.require_synchronous_commit();
  select j.id, j.state, j.queue, j.task, j.priority, j.max_attempts, j.fencing_token, j.args, j.flow_id, j.group_key,
    o.lease_seconds, o.keep_args
  into original
  from faultline.jobs j
  left join faultline.open_jobs o on o.id = j.id
  where j.id = fork.job_id and (fork.only_queues is null or j.queue = any (fork.only_queues));
  if not found then
    raise exception 'no job %', fork.job_id
      using errcode = 'FL004', hint = 'it was never enqueued in this database, or it was pruned after its retention time';
  end if;
  if exists (select from faultline.jobs j where j.id = fork_id) then
    if exists (
      select from faultline.journal n
      where n.job_id = fork_id and n.event = 'forked' and n.detail ->> 'from' = fork.job_id::text
    ) then
      return fork_id;
    end if;
    raise exception 'job % cannot be forked as %: there is another job with that id', fork.job_id, fork_id using errcode = 'FL005';
  end if;
  -- So that `prune` leaves the flow alone meanwhile.
  perform from faultline.flows f where f.id = original.flow_id and not f.pruning for key share skip locked;
  if not found and exists (select from faultline.flows f where f.id = original.flow_id) then
    raise exception 'job % cannot be forked: its flow is being pruned', fork.job_id
      using errcode = 'FL002', hint = 'its retention time is over; if it was changed just now, try again';
  end if;
  if fork.before_number is not null then
    select min(c.begun_at) into cut_at
    from faultline.calls c
    where c.job_id = fork.job_id and (c.number = fork.before_number or starts_with(c.number, fork.before_number || '.'));
    if cut_at is null then
      raise exception 'job % has no call %', fork.job_id, fork.before_number
        using errcode = 'FL004', hint = '`faultline flow` shows the numbers of its calls';
    end if;
    cut := string_to_array(fork.before_number, '.')::numeric[];
  end if;
  perform faultline.refuse_fork(fork.job_id, cut);
  document := faultline.read_jobs(json_build_array(json_build_object(
    'id', fork_id, 'task', original.task, 'args', faultline.args_of_fork(fork.job_id, fork.args, original.args),
    'queue', original.queue, 'priority', original.priority, 'max_attempts', original.max_attempts,
    'lease_seconds', original.lease_seconds, 'keep_args', original.keep_args, 'group', original.group_key
  ))::text, at, (select s.args_bytes_max from faultline.settings s));
  if original.state in ('failed', 'cancelled') then
    stopped := faultline.stopped_at(fork.job_id);
    doubtful_from := (select min(c.ended_moment) from faultline.calls c where c.id = any (stopped));
    stopped := stopped || faultline.closed_with(fork.job_id, stopped);
  end if;
  perform faultline.set_current_verb('fork');
  token := faultline.copy_history(
    fork.job_id, original.fencing_token, fork_id, document, at, cut, cut_at, stopped, doubtful_from
  );
  perform faultline.set_current_verb('');
  if (
    select sum(octet_length(c.result::text)) from faultline.calls c where c.job_id = fork_id
  ) > bytes_max then
    raise exception 'job % cannot be forked there: the results before it have more than 64 MiB', fork.job_id
      using errcode = 'FL007', hint = 'fork it before an earlier call';
  end if;
  insert into faultline.flows (id, begun_at) values (fork_id, at);
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  values
    (at, fork.job_id, 'forked', original.fencing_token, signed || jsonb_build_object('into', fork_id, 'before', fork.before_number)),
    (at, fork_id, 'forked', token, signed || jsonb_build_object('from', fork.job_id, 'before', fork.before_number));
  perform faultline.wake_new(array[original.queue], original.priority::integer, at, at, 1);
  return fork_id;
end
$$;
