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
  given json;
  document json;
  token bigint;
  stopped bigint[] := '{}';
  -- See `doubtful`.
  doubtful_from bigint;
  undone text;
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
  if exists (select from faultline.calls c where c.job_id = fork.job_id and c.number = '0' and c.kind = 'children') then
    raise exception 'job % cannot be forked: it only waits for the jobs of a graph', fork.job_id
      using errcode = 'FL002', hint = 'fork one of these jobs, or enqueue the graph again';
  end if;
  select c.number into undone
  from faultline.calls c
  where c.job_id = fork.job_id and c.kind = 'saga' and c.outcome = 'failed'
    and (cut is null or string_to_array(c.number, '.')::numeric[] < cut)
  order by string_to_array(c.number, '.')::numeric[]
  limit 1;
  if undone is not null then
    raise exception 'job % cannot be forked there: the saga that began with call % was undone', fork.job_id, undone
      using errcode = 'FL002', hint = format('fork it before call %s', undone);
  end if;
  if exists (
    select from faultline.calls c
    where c.job_id = fork.job_id and c.kind = 'after' and c.ended_at is null and faultline.open_child(c.id, 2147483647) is not null
  ) then
    raise exception 'job % cannot be forked yet: jobs that it comes after have not ended', fork.job_id using errcode = 'FL002';
  end if;
  begin
    given := coalesce(fork.args::json, original.args);
  exception when data_exception then
    raise exception 'job % cannot be forked with these arguments: %', fork.job_id, sqlerrm using errcode = 'FL005';
  end;
  if given is null then
    raise exception 'job % cannot be forked without arguments: its own were not kept', fork.job_id
      using errcode = 'FL005', hint = 'give the arguments of the fork';
  elsif json_typeof(given) <> 'object' then
    raise exception 'job % cannot be forked with these arguments: they must be a JSON object', fork.job_id using errcode = 'FL005';
  end if;
  document := faultline.read_jobs(json_build_array(json_build_object(
    'id', fork_id, 'task', original.task, 'args', given, 'queue', original.queue, 'priority', original.priority,
    'max_attempts', original.max_attempts, 'lease_seconds', original.lease_seconds, 'keep_args', original.keep_args,
    'group', original.group_key
  ))::text, at, (select s.args_bytes_max from faultline.settings s));
  if original.state in ('failed', 'cancelled') then
    stopped := faultline.stopped_at(fork.job_id);
    doubtful_from := (select min(c.ended_moment) from faultline.calls c where c.id = any (stopped));
    stopped := stopped || faultline.closed_with(fork.job_id, stopped);
  end if;
  perform faultline.set_current_verb('fork');
  -- In one statement: the other job may go on meanwhile, or start over.
  with source as materialized (
    select
      c.*,
      case
        when c.kind = 'after' then coalesce(c.result, '{"failed": {}, "results": {}}') || jsonb_build_object('upstream', (
          select coalesce(c.result -> 'upstream', jsonb_agg(to_jsonb(u)))
          from faultline.came_after(c.id, c.result -> 'failed') u
        ))
        when c.kind in ('children', 'watch') and c.outcome = 'done' then jsonb_set(c.result, '{results}', (
          select coalesce(jsonb_object_agg(e.index, f.result), '{}')
          from faultline.edges e
          -- Looked up one by one, as in `complete`.
          join faultline.ledger f on f.job_id = any (array[e.job_id])
          where e.call_id = c.id and not c.result -> 'failed' ? e.index::text
        ) || (c.result -> 'results'))
        else c.result
      end as copied
    from faultline.calls c
    where c.job_id = fork.job_id
      and (c.ended_at is not null or c.kind = 'after')
      and c.number !~ '^0[.]0([.]|$)'
      and c.id <> all (stopped)
      and (cut is null or string_to_array(c.number, '.')::numeric[] < cut)
      -- A step that has ended needs no pauses between its tries, and one that has not begins with its first.
      and c.kind <> 'retry'
      -- A change is in force from its place among the calls on.
      and (c.kind <> 'patch' or cut is null or (
        (string_to_array(c.number, '.')::numeric[])[:array_length(string_to_array(c.number, '.'), 1) - 2]
        || ((c.result ->> 'after')::numeric + 1) <= cut
      ))
      -- What lost a race has lost it only if the end of the race is part of the history.
      and (c.outcome is distinct from 'closed' or cut is null or exists (
        select from faultline.calls r
        where r.job_id = fork.job_id and r.kind = 'race' and r.outcome = 'done' and r.ended_moment = c.ended_moment
          and string_to_array(r.number, '.')::numeric[] < cut
      ))
  ),
  -- In their order: what began after the end of another one still does.
  numbered as materialized (
    select s.*, nextval(pg_get_serial_sequence('faultline.calls', 'id')) as new_id from (select * from source order by id) s
  ),
  job as (
    insert into faultline.open_jobs (
      id, task, args, queue, priority, next_run_at, max_attempts, lease_seconds, keep_args, created_at, group_key,
      fencing_token, flow_id
    )
    select
      p.id, p.task, p.args, p.queue, p.priority, coalesce(p.group_at, p.next_run_at), p.max_attempts, p.lease_seconds, p.keep_args, p.created_at,
      -- It goes to its group by itself.
      p.group_key,
      greatest(
        original.fencing_token, (select max(s.fencing_token) from source s),
        (select max(s.fencing_token) from faultline.steps s where s.job_id = fork.job_id)
      ),
      p.id
    from faultline.parse_new_jobs(document, at, 2147483647) p
    returning fencing_token
  ),
  copies as (
    insert into faultline.calls (
      id, job_id, number, kind, name, digest, fencing_token, begun_at, until, policy, fresh, total, spawned, tries,
      ended_at, ended_moment, doubtful, outcome, result, error
    )
    overriding system value
    select
      s.new_id, fork_id, s.number, s.kind, s.name,
      -- Arguments that named the other job, as by its id, name this one now: they are not compared.
      regexp_replace(s.digest, '(^|:)~[0-9a-f]{32}(?=/|$)', '\1~', 'g'),
      s.fencing_token, s.begun_at, s.until, s.policy, s.fresh, s.total,
      s.spawned, s.tries, coalesce(s.ended_at, at),
      case when s.ended_moment is not null then (select coalesce(max(o.new_id), 0) from numbered o where o.id <= s.ended_moment) end,
      nullif(coalesce(s.doubtful, false) or coalesce(s.id > doubtful_from, false), false),
      coalesce(s.outcome, 'done'), s.copied, s.error
    from numbered s
    returning id, number
  ),
  arrows as (
    insert into faultline.edges (call_id, index, job_id)
    select c.id, e.index, e.job_id
    from copies c
    join source s on s.number = c.number
    join faultline.edges e on e.call_id = s.id
  )
  select j.fencing_token into token from job j;
  insert into faultline.steps (job_id, name, fencing_token, recorded_at, result)
  select fork_id, s.name, s.fencing_token, s.recorded_at, s.result
  from faultline.steps s
  where s.job_id = fork.job_id and (cut_at is null or s.recorded_at < cut_at) and s.fencing_token <= token;
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
