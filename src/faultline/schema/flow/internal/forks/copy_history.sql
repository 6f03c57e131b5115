-- Insert the job of a fork, from its document, with copies of the calls and steps of the other job. See `fork`. Returns the token
-- with which it begins. Before: `faultline.verb` is fork. `fencing_token` is that of the other job, `cut_at` when the call at `cut` began.
-- Copies of what began after `doubtful_from` are doubtful: the program may not make them again.
create or replace function faultline.copy_history(
  job_id uuid,
  fencing_token bigint,
  fork_id uuid,
  document json,
  at timestamptz,
  cut numeric[],
  cut_at timestamptz,
  stopped bigint[],
  doubtful_from bigint
) returns bigint
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  begins_at bigint;
begin
  -- In one statement: the other job may go on meanwhile, or start over.
  with source as materialized (
    select (k.call).*, k.copied from faultline.calls_to_copy(copy_history.job_id, cut, stopped) k
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
        copy_history.fencing_token, (select max(s.fencing_token) from source s),
        (select max(s.fencing_token) from faultline.steps s where s.job_id = copy_history.job_id)
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
  select j.fencing_token into begins_at from job j;
  insert into faultline.steps (job_id, name, fencing_token, recorded_at, result)
  select fork_id, s.name, s.fencing_token, s.recorded_at, s.result
  from faultline.steps s
  where s.job_id = copy_history.job_id and (cut_at is null or s.recorded_at < cut_at) and s.fencing_token <= begins_at;
  return begins_at;
end
$$;
