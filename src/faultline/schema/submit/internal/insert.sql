-- Insert jobs, or find those that stand for them.

-- Insert one plain job, whose values were checked, and wake workers for it, as `enqueue_many` does for several: a few of those
-- that sleep. Workers may have claimed beyond its position by the time it is committed, if it is due in the past or if its
-- transaction goes on for long: then all of them are told.
create or replace function faultline.insert_one(
  id uuid, task text, args text, queue text, priority integer, due timestamptz, max_attempts integer,
  lease_seconds double precision, keep_args boolean, trace text, at timestamptz
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  late constant boolean := insert_one.due < insert_one.at
    or pg_current_xact_id_if_assigned() is not null
    or statement_timestamp() - transaction_timestamp() > interval '5 milliseconds';
  position constant text := concat(
    insert_one.priority, ' ', least(insert_one.due, transaction_timestamp()), ' ', insert_one.queue
  );
  chosen text[];
  sleepers bigint;
begin
  if current_setting('synchronous_commit') = 'off' then
    perform faultline.require_synchronous_commit();
  end if;
  insert into faultline.open_jobs (
    id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue, task, args, trace
  )
  values (
    insert_one.id, insert_one.at, insert_one.due, insert_one.lease_seconds::real, insert_one.priority::smallint,
    insert_one.max_attempts::smallint, insert_one.keep_args, insert_one.queue, insert_one.task, insert_one.args::json,
    insert_one.trace
  );
  if insert_one.due > insert_one.at then
    return;
  end if;
  -- The insert may have waited for a lock: by now later jobs may have been claimed.
  if late or clock_timestamp() - statement_timestamp() > interval '50 milliseconds' then
    -- Once per transaction and position. PostgreSQL removes duplicate notifications too, but only after the work is done.
    if current_setting('faultline.woken', true) is distinct from position
      and exists (select from faultline.workers w where insert_one.queue = any (w.queues))
    then
      perform faultline.wake(
        insert_one.queue, insert_one.priority, least(insert_one.due, transaction_timestamp())
      );
      perform set_config('faultline.woken', position, true);
    end if;
    return;
  end if;
  -- One look for both questions: whether anybody sleeps, and who of those was seen lately.
  select
    (array_agg(w.id order by random()) filter (
      where w.heartbeat_at > insert_one.at - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
    ))[:3],
    count(*)
  into chosen, sleepers
  from faultline.workers w
  where insert_one.queue = any (w.sleeping);
  if sleepers > 0 then
    perform faultline.wake(
      insert_one.queue, insert_one.priority, transaction_timestamp(), chosen, array[insert_one.id]
    );
  end if;
end
$$;

-- Insert the jobs of a submission that may have been sent before, in whole or in part: by their ids, or by their keys.
-- Returns the id of every job in the order given, whether it is new, and the lowest position in the queues.
create or replace function faultline.insert_or_find_jobs(
  jobs json,
  at timestamptz,
  args_bytes_max integer,
  out ids uuid[],
  out news boolean[],
  out first_queue text,
  out last_queue text,
  out lowest_priority integer,
  out lowest_run_at timestamptz
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  inserted uuid[];
  named boolean;
  grouped boolean;
  keyed uuid[];
  has_unique boolean;
  answered boolean[];
  moved uuid[];
  its record;
begin
  with parsed as materialized (
    select * from faultline.parse_new_jobs(insert_or_find_jobs.jobs, insert_or_find_jobs.at, insert_or_find_jobs.args_bytes_max)
  ),
  -- What a new job is not given, but a key is. In the order of `parsed`: both are read from the beginning.
  given as materialized (
    select * from rows from (json_to_recordset(jobs) as (id uuid, digest text)) with ordinality as g (id, digest, ordinal)
  ),
  -- Keys are taken in one order by everyone: two submissions with the same keys in opposite order would deadlock.
  taken as (
    insert into faultline.keys (key, job_id, digest, created_at)
    select
      p.idempotency_key, p.id, faultline.digest(p.task, p.args, g.digest), insert_or_find_jobs.at
    from (select n.*, row_number() over () as ordinal from parsed n) p
    join given g using (ordinal)
    where p.idempotency_key is not null
    order by p.idempotency_key, p.ordinal
    on conflict (key) do nothing
    returning job_id
  ),
  inserted as (
    insert into faultline.new_jobs
    select p.* from parsed p
    -- Unique ones are judged afterwards: see insert_unique_jobs.
    where p.unique_key is null and (p.idempotency_key is null or p.id in (select t.job_id from taken t))
    -- In one order by everyone, as the keys.
    order by p.id
    on conflict (id) do nothing
    returning id
  )
  -- In the order of the jobs: a scan of `parsed` gives them as they were read.
  select
    array_agg(p.id), coalesce((select array_agg(n.id) from inserted n), '{}'),
    (select bool_or(g.id is not null) from given g), array(select t.job_id from taken t), bool_or(p.unique_key is not null),
    min(p.queue), max(p.queue),
    min(p.priority) filter (where p.unique_key is null),
    min(coalesce(p.group_at, p.next_run_at)) filter (where p.unique_key is null), bool_or(p.in_group)
  into ids, inserted, named, keyed, has_unique, first_queue, last_queue, lowest_priority, lowest_run_at, grouped
  from parsed p;
  if named and current_setting('transaction_isolation') <> 'read committed' then
    -- The look into the ledger would not see what finished since the transaction began, and run it again.
    raise exception 'jobs with an explicit id can be enqueued only in READ COMMITTED transactions'
      using errcode = 'FL005', hint = 'leave the id to the database, or use an idempotency_key';
  end if;
  if grouped then
    perform faultline.insert_arrival_events(inserted);
  end if;
  -- As a subquery, which is hashed. A plan that PostgreSQL keeps would compare each id with all in the array.
  news := array(
    select u.id in (select n.id from unnest(inserted) as n (id))
    from unnest(ids) with ordinality as u (id, ordinal)
    order by u.ordinal
  );
  if cardinality(array_positions(news, true)) > cardinality(inserted) then
    raise exception 'the submission is refused: two of its jobs have the same id'
      using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
  end if;
  if has_unique then
    its := faultline.insert_unique_jobs(insert_or_find_jobs.jobs, at, insert_or_find_jobs.args_bytes_max, ids, news, keyed);
    ids := its.ids;
    news := its.news;
    answered := its.answered;
    lowest_priority := least(lowest_priority, its.lowest_priority);
    lowest_run_at := least(lowest_run_at, its.lowest_run_at);
    -- Claims passed over them while we had them locked, or have been beyond their new time.
    perform faultline.wake_for(its.moved);
  end if;
  -- In statements of their own, which see what was committed while this one waited. An id that was made here is in no ledger,
  -- and of new jobs there is nothing to be known: the first submission under a key costs little more than one without.
  if named then
    news := faultline.delete_already_completed(ids, news);
  end if;
  if false = any (news) then
    select r.ids, r.news into ids, news from faultline.resolve_known(insert_or_find_jobs.jobs, ids, news, answered) r;
  end if;
end
$$;

-- Find the existing job for each job of a submission that is not new, and check that it is the same.
-- `answered` are unique ones that have another job's id already.
-- Raises FL003 if its key or id belongs to a job with another task or other arguments, or its key to another `digest`.
create or replace function faultline.resolve_known(
  jobs json, inout ids uuid[], inout news boolean[], answered boolean[] default null
)
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  known record;
begin
  for known in
    select
      s.position, s.task, s.key,
      coalesce(k.job_id, s.id) as job_id,
      (s.key is null or k.key is not null) and coalesce(k.key, o.task, f.task) is not null as found,
      k.digest <> s.key_digest
        -- Of a unique one, the job may be another's, or have been replaced.
        or not s.is_unique and (
          faultline.digest(o.task, o.args) <> s.digest
          or faultline.digest(f.task, f.args) <> s.digest
          -- The ledger may not have kept the arguments; then only the task can be compared.
          or f.task <> s.task
        ) as differs
    from (
      select
        j.position,
        resolve_known.ids[j.position] as id,
        j.task,
        j.idempotency_key as key,
        j."unique" is not null as is_unique,
        faultline.digest(j.task, a.args) as digest,
        faultline.digest(j.task, a.args, j.digest) as key_digest
      -- All at once: PostgreSQL reads a JSON text from its beginning to find one element.
      from rows from (
        json_to_recordset(resolve_known.jobs) as (task text, args json, idempotency_key text, digest text, "unique" json)
      ) with ordinality as j (task, args, idempotency_key, digest, "unique", position)
      cross join lateral (select case when json_typeof(j.args) = 'object' then j.args else '{}' end as args) a
      where not resolve_known.news[j.position] and resolve_known.answered[j.position] is not true
    ) s
    -- Looked up one by one, as in `complete`.
    left join faultline.keys k on k.key = any (array[s.key])
    left join faultline.open_jobs o on o.id = any (array[coalesce(k.job_id, s.id)])
    left join faultline.ledger f on f.job_id = any (array[coalesce(k.job_id, s.id)])
    order by s.position
  loop
    if not known.found then
      raise exception 'job % (task %) has the key or id of a job that was pruned at this moment', known.position, known.task
        using errcode = 'serialization_failure', hint = 'Nothing was enqueued; send the submission again.';
    elsif known.differs then
      raise exception 'job % (task %) is refused: its % already belongs to a job with another task or other arguments',
        known.position, known.task, case when known.key is null then 'id' else 'idempotency_key' end
        using errcode = 'FL003',
              detail = json_build_object('job_id', known.job_id)::text,
              hint = 'Nothing of this submission was enqueued. Use another key for other work.';
    end if;
    ids[known.position] := known.job_id;
  end loop;
end
$$;

-- Delete just inserted jobs whose id is in the ledger, and mark them as not new.
-- The insert comes first: if the ledger were read first, a job that completes before the insert would run again.
create or replace function faultline.delete_already_completed(ids uuid[], news boolean[]) returns boolean[]
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  finished uuid[];
begin
  select array_agg(f.job_id) into finished
  from faultline.ledger f
  where f.job_id = any (delete_already_completed.ids);
  if finished is null then
    return news;
  end if;
  perform faultline.set_current_verb('enqueue');
  delete from faultline.open_jobs j where j.id = any (finished);
  perform faultline.set_current_verb('');
  return (
    select array_agg(u.new and u.id <> all (finished) order by u.position)
    from unnest(ids, news) with ordinality as u (id, new, position)
  );
end
$$;

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

-- Does the job of this key stand in for a new one under it? `spec` is what the new one is unique by: while the other is queued, while
-- it is open, or for a period from its submission. `is_queued`: it is, and locked by the caller.
create or replace function faultline.still_stands(
  known faultline.unique_keys, is_queued boolean, spec json, at timestamptz
) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- Null, given as such: for a period only.
  scope constant text := case when spec -> 'while' is null then 'queued' else spec ->> 'while' end;
  is_over boolean;
begin
  if is_queued and scope in ('queued', 'open') then
    return true;
  elsif scope is distinct from 'open' and spec ->> 'period' is null then
    return false;
  end if;
  select j.state in ('failed', 'cancelled') or faultline.has_expired(j.state, j.fencing_token, j.expires_at, still_stands.at)
  into is_over
  from (select * from faultline.open_jobs j where j.id = known.job_id offset 0) j;
  return (
    (scope = 'open' and not is_over)
    -- A key of the future is of a clock that was ahead. What failed, was cancelled or has expired has not done the work.
    or (
      known.at > still_stands.at - make_interval(secs => (spec ->> 'period')::float8)
      and known.at <= still_stands.at + interval '1 second'
      and is_over is not true
    )
  ) is true;
end
$$;

-- Another submission is answered with this queued job, whose row the caller has locked: what of it counts from now on.
--   replace   its arguments, its group and its time; the journal records it
--   debounce  its time, from now, but not more than `at_most` (default: ten times the debounce) after it was enqueued
-- It expires with the later of the two: the one who hears that it is queued relies on a run. Until the caller commits, claims may
-- pass over it as one that has expired, so its group looks again.
create or replace function faultline.renew_unique(
  job_id uuid,
  spec json,
  at timestamptz,
  new_id uuid,
  args json,
  next_run_at timestamptz,
  expires_at timestamptz,
  group_key text
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  replaces constant boolean := coalesce(spec ->> 'then', 'keep') = 'replace';
  debounce constant float8 := (spec ->> 'debounce')::float8;
  was record;
  moves_to timestamptz;
  leaves boolean;
begin
  select j.created_at, coalesce(j.group_at, j.next_run_at) as next_run_at, j.fencing_token, j.suspended, j.group_key, j.in_group,
    j.expires_at
  into was
  from faultline.open_jobs j
  where j.id = renew_unique.job_id;
  moves_to := case
    -- A job of a graph waits for others, whatever its time.
    when was.suspended then was.next_run_at
    when debounce is not null then least(
      at + make_interval(secs => debounce),
      was.created_at + make_interval(secs => coalesce((spec ->> 'at_most')::float8, 10 * debounce))
    )
    when replaces then renew_unique.next_run_at
    else was.next_run_at
  end;
  -- After a failed attempt it waits at least as long as its backoff says.
  if was.fencing_token > 0 then
    moves_to := greatest(moves_to, was.next_run_at);
  end if;
  -- One that waits in its group has no other time: to be waited for, it must leave, and come again. To another group as well.
  leaves := moves_to <> was.next_run_at or replaces and was.group_key is distinct from renew_unique.group_key;
  update faultline.open_jobs j
  set args = case when replaces then renew_unique.args else j.args end,
      group_key = case when replaces then renew_unique.group_key else j.group_key end,
      -- Named, so that free_permits gives back what it has kept of its old group.
      state = j.state,
      next_run_at = case when j.in_group and not leaves then j.next_run_at else moves_to end,
      in_group = case when not leaves then j.in_group end,
      group_at = case when not leaves then j.group_at end,
      expires_at = case when j.expires_at is not null and renew_unique.expires_at is not null
        then greatest(j.expires_at, renew_unique.expires_at)
      end
  where j.id = renew_unique.job_id
    and (
      replaces or moves_to <> was.next_run_at
      or j.expires_at is not null and (renew_unique.expires_at is null or renew_unique.expires_at > j.expires_at)
    );
  if was.expires_at is not null and was.in_group then
    perform faultline.insert_arrival_events(array[renew_unique.job_id]);
  end if;
  if replaces and renew_unique.new_id <> renew_unique.job_id then
    insert into faultline.journal (at, job_id, event, fencing_token, detail)
    values (
      at, renew_unique.job_id, 'replaced', was.fencing_token,
      jsonb_build_object('next_run_at', moves_to, 'was_next_run_at', was.next_run_at)
    );
  end if;
end
$$;
