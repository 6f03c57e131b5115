-- Steps of fork.

-- Refuse to fork a job (FL002) whose history before `cut` cannot be gone on with: it is the root of a graph, a saga was undone, or
-- what it comes after has not ended. `cut` is the number of a call, as numbers; null: the whole history.
create or replace function faultline.refuse_fork(job_id uuid, cut numeric[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  undone text;
begin
  if exists (select from faultline.calls c where c.job_id = refuse_fork.job_id and c.number = '0' and c.kind = 'children') then
    raise exception 'job % cannot be forked: it only waits for the jobs of a graph', refuse_fork.job_id
      using errcode = 'FL002', hint = 'fork one of these jobs, or enqueue the graph again';
  end if;
  select c.number into undone
  from faultline.calls c
  where c.job_id = refuse_fork.job_id and c.kind = 'saga' and c.outcome = 'failed'
    and (cut is null or string_to_array(c.number, '.')::numeric[] < cut)
  order by string_to_array(c.number, '.')::numeric[]
  limit 1;
  if undone is not null then
    raise exception 'job % cannot be forked there: the saga that began with call % was undone', refuse_fork.job_id, undone
      using errcode = 'FL002', hint = format('fork it before call %s', undone);
  end if;
  if exists (
    select from faultline.calls c
    where c.job_id = refuse_fork.job_id and c.kind = 'after' and c.ended_at is null
      and faultline.open_child(c.id, 2147483647) is not null
  ) then
    raise exception 'job % cannot be forked yet: jobs that it comes after have not ended', refuse_fork.job_id using errcode = 'FL002';
  end if;
end
$$;

-- The arguments of a fork: those given as text, or those that were kept with the other job. FL005 where they are no JSON object.
create or replace function faultline.args_of_fork(job_id uuid, args text, kept json) returns json
language plpgsql immutable
as $$
declare
  given json;
begin
  begin
    given := coalesce(args_of_fork.args::json, args_of_fork.kept);
  exception when data_exception then
    raise exception 'job % cannot be forked with these arguments: %', args_of_fork.job_id, sqlerrm using errcode = 'FL005';
  end;
  if given is null then
    raise exception 'job % cannot be forked without arguments: its own were not kept', args_of_fork.job_id
      using errcode = 'FL005', hint = 'give the arguments of the fork';
  elsif json_typeof(given) <> 'object' then
    raise exception 'job % cannot be forked with these arguments: they must be a JSON object', args_of_fork.job_id
      using errcode = 'FL005';
  end if;
  return given;
end
$$;

-- The calls of a job that go with a fork of it, before `cut` and without those in `stopped`, each with the result that its copy has:
-- one that needs nothing of the other flow.
create or replace function faultline.calls_to_copy(job_id uuid, cut numeric[], stopped bigint[]) returns table (
  call faultline.calls,
  copied jsonb
)
language sql stable
as $$
  select
    c,
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
    end
  from faultline.calls c
  where c.job_id = calls_to_copy.job_id
    and (c.ended_at is not null or c.kind = 'after')
    and c.number !~ '^0[.]0([.]|$)'
    and c.id <> all (calls_to_copy.stopped)
    and (calls_to_copy.cut is null or string_to_array(c.number, '.')::numeric[] < calls_to_copy.cut)
    -- A step that has ended needs no pauses between its tries, and one that has not begins with its first.
    and c.kind <> 'retry'
    -- A change is in force from its place among the calls on.
    and (c.kind <> 'patch' or calls_to_copy.cut is null or (
      (string_to_array(c.number, '.')::numeric[])[:array_length(string_to_array(c.number, '.'), 1) - 2]
      || ((c.result ->> 'after')::numeric + 1) <= calls_to_copy.cut
    ))
    -- What lost a race has lost it only if the end of the race is part of the history.
    and (c.outcome is distinct from 'closed' or calls_to_copy.cut is null or exists (
      select from faultline.calls r
      where r.job_id = calls_to_copy.job_id and r.kind = 'race' and r.outcome = 'done' and r.ended_moment = c.ended_moment
        and string_to_array(r.number, '.')::numeric[] < calls_to_copy.cut
    ));
$$;

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
