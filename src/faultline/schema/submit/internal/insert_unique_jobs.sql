-- Insert the unique jobs of a submission, or find the jobs that stand in for them. The others are inserted already.
-- `ids` and `news` are those of the whole submission; of these jobs, none is new before. `taken` are the jobs whose idempotency
-- keys are new. After: `answered` says which have another job's id; `moved` are queued jobs for which workers must look again.
--
-- A submission that is answered with a queued job is followed by a run that starts after its commit. So the job's row stays
-- locked until then, and claims pass over it: what runs later sees what the submitter has written. Only a queued job's row is
-- locked: a lock on a running one would hold up its completion. One that is locked by somebody else may be about to run, and
-- counts as running.
create or replace function faultline.insert_unique_jobs(
  jobs json,
  at timestamptz,
  args_bytes_max integer,
  inout ids uuid[],
  inout news boolean[],
  taken uuid[],
  out answered boolean[],
  out moved uuid[],
  out lowest_priority integer,
  out lowest_run_at timestamptz
)
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  job record;
  new_job faultline.new_jobs;
  known faultline.unique_keys;
  queued record;
  is_queued boolean;
begin
  answered := array_fill(false, array[cardinality(ids)]);
  moved := '{}';
  -- All keys at once, in one order by everyone. Those that exist are locked and not changed: `do nothing` would leave them to
  -- a prune that deletes them now.
  insert into faultline.unique_keys (queue, key, task, job_id, at)
  select p.queue, p.unique_key, p.task, '00000000-0000-0000-0000-000000000000', '-infinity'
  from faultline.parse_new_jobs(insert_unique_jobs.jobs, insert_unique_jobs.at, insert_unique_jobs.args_bytes_max) p
  where p.unique_key is not null
  group by p.queue, p.unique_key, p.task
  order by p.queue, p.unique_key, p.task
  on conflict (queue, key, task) do update set at = excluded.at where false;
  for job in
    select row((p.n).*)::faultline.new_jobs as made, p.position, g.spec
    from (
      select n, row_number() over () as position
      from faultline.parse_new_jobs(insert_unique_jobs.jobs, insert_unique_jobs.at, insert_unique_jobs.args_bytes_max) n
    ) p
    join rows from (json_to_recordset(insert_unique_jobs.jobs) as ("unique" json)) with ordinality as g (spec, position)
      on g.position = p.position
    where (p.n).unique_key is not null
      and ((p.n).idempotency_key is null or ids[p.position] = any (insert_unique_jobs.taken))
    order by (p.n).queue, (p.n).unique_key, (p.n).task, p.position
  loop
    new_job := job.made;
    new_job.id := ids[job.position];
    if job.spec ->> 'debounce' is not null then
      new_job.next_run_at := insert_unique_jobs.at + make_interval(secs => (job.spec ->> 'debounce')::float8);
      -- It goes to its group when it is due.
      new_job.in_group := null;
      new_job.group_at := null;
    end if;
    -- In statements of their own, after the lock: they see all that was committed before we had it.
    select k.* into known
    from faultline.unique_keys k
    where k.queue = new_job.queue and k.key = new_job.unique_key and k.task = new_job.task;
    select j.* into queued
    from faultline.open_jobs j
    -- Said so that no index of queued jobs fits: while there are few, one would be walked instead.
    where j.id = known.job_id and coalesce(j.state, '') = 'queued'
    for update skip locked;
    is_queued := found and faultline.will_run_from_start(queued.id, queued.fencing_token, queued.flow_id, queued.expires_at, at);
    if faultline.still_stands(known, is_queued, job.spec, at) then
      if is_queued then
        perform faultline.renew_unique(
          queued.id, job.spec, at, new_job.id, new_job.args, coalesce(new_job.group_at, new_job.next_run_at), new_job.expires_at,
          new_job.group_key
        );
        moved := moved || queued.id;
      end if;
      ids[job.position] := known.job_id;
      answered[job.position] := true;
      if new_job.idempotency_key is not null then
        -- Sent again, the key gives the job that this submission was answered with.
        update faultline.keys k set job_id = known.job_id where k.key = new_job.idempotency_key;
      end if;
      continue;
    end if;
    insert into faultline.new_jobs values (new_job.*) on conflict (id) do nothing;
    -- Otherwise it was sent before, and is known by its id.
    if found then
      news[job.position] := true;
      lowest_priority := least(lowest_priority, new_job.priority);
      lowest_run_at := least(lowest_run_at, coalesce(new_job.group_at, new_job.next_run_at));
      if new_job.in_group then
        perform faultline.insert_arrival_events(array[new_job.id]);
      end if;
      update faultline.unique_keys k
      set job_id = new_job.id,
          at = insert_unique_jobs.at,
          until = insert_unique_jobs.at + make_interval(secs => (job.spec ->> 'period')::float8)
      where k.queue = new_job.queue and k.key = new_job.unique_key and k.task = new_job.task;
    end if;
  end loop;
end
$$;
