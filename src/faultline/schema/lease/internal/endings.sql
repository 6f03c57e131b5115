-- How attempts and jobs end badly, and when they run again.

-- Tell those who wait for these jobs that they have ended, not by success, and have what is below them swept.
-- Before: the caller has just ended them. Jobs for which nobody waits, and that belong to no flow, need not be among them.
create or replace function faultline.end_badly(job_ids uuid[], reason text default null) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  call_ids bigint[];
  watched uuid[];
  parents uuid[];
begin
  select
    array_agg(j.call_id) filter (where j.call_id is not null),
    array_agg(j.id) filter (where j.watched),
    array_agg(j.id) filter (where j.flow_id is not null)
  into call_ids, watched, parents
  from unnest(end_badly.job_ids) as u (id)
  join faultline.open_jobs j on j.id = any (array[u.id]);
  if call_ids is not null or watched is not null then
    perform faultline.nudge_waiters(call_ids, watched, true);
  end if;
  insert into faultline.sweeps (job_id, reason) select p.id, end_badly.reason from unnest(parents) as p (id);
end
$$;

-- Cancel those of these jobs whose unique keys name another queued job. Before: the caller has just queued them again.
-- After: cancelled, with `superseded` in the journal. Otherwise each failed attempt of a job, in whose place another was enqueued
-- while it ran, would add one to those that wait under the same key.
-- The other job starts later than they did, so it does what was asked of them: if it is due no later than they are, and, as
-- they do, no longer expires. Its row is locked, so that it is not cancelled meanwhile. One that others wait for stays: they
-- wait for it and not for the other. So does one of a flow, which would lose what it has done.
-- Claims may have passed over the other, as one that had expired: its group and workers look again.
create or replace function faultline.supersede(job_ids uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  renewed uuid[];
begin
  with other as materialized (
    select j.id, o.id as other
    from unnest(supersede.job_ids) as u (id)
    cross join lateral (
      select j.id, j.task, j.state, j.queue, j.unique_key, j.flow_id, j.call_id, j.watched, j.next_run_at
      from faultline.open_jobs j
      where j.id = u.id
      offset 0
    ) j
    cross join lateral (
      select k.job_id from faultline.unique_keys k where k.queue = j.queue and k.key = j.unique_key and k.task = j.task offset 0
    ) k
    cross join lateral (
      select o.id, o.fencing_token, o.flow_id, o.expires_at, coalesce(o.group_at, o.next_run_at) as due
      from faultline.open_jobs o
      -- Said so that no index of queued jobs fits, as in insert_unique_jobs.
      where o.id = k.job_id and o.id <> j.id and coalesce(o.state, '') = 'queued'
      for update skip locked
    ) o
    where j.state = 'queued'
      and j.flow_id is null
      and j.call_id is null
      and j.watched is not true
      and o.due <= greatest(j.next_run_at, faultline.clock())
      and faultline.will_run_from_start(o.id, o.fencing_token, o.flow_id, o.expires_at, faultline.clock())
  ),
  relied_on as (
    update faultline.open_jobs o
    set expires_at = null
    from other t
    where o.id = any (array[t.other]) and o.expires_at is not null
    returning o.id
  ),
  ended as (
    update faultline.open_jobs j
    set state = 'cancelled',
        finished_at = faultline.clock(),
        last_error = concat_ws(e'\n', 'superseded by job ' || o.other, j.last_error)
    from other o
    where j.id = any (array[o.id])
    returning j.id, j.fencing_token, o.other
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, detail)
    select faultline.clock(), e.id, 'superseded', e.fencing_token, jsonb_build_object('was', 'queued', 'by_job', e.other)
    from ended e
    order by e.id
  )
  select array_agg(r.id) into renewed from relied_on r;
  if renewed is not null then
    perform faultline.insert_arrival_events(renewed);
    perform faultline.wake_for(renewed);
  end if;
end
$$;

-- Raise FL005 unless there is one failure per lease, and each makes sense: see fail.
create or replace function faultline.check_failures(failures jsonb, leases integer) returns void
language plpgsql immutable
as $$
declare
  makes_sense boolean;
begin
  begin
    makes_sense := jsonb_array_length(failures) = leases
      and not exists (
        select from jsonb_to_recordset(failures) as f ("then" text, delay_seconds float8, calls jsonb)
        where f."then" is null or f."then" not in ('retry', 'fail', 'cancel') or f.delay_seconds not between 0 and 31536000
          or jsonb_typeof(f.calls) <> 'array'
      );
  exception
    when data_exception then
      null;  -- no array, an element that is no object, or a delay that is no number
  end;
  if makes_sense is not true then
    raise exception 'failures must be an array with one {"then": "retry"|"fail"|"cancel"} per lease'
      using errcode = 'FL005',
        detail = 'delay_seconds, if given, must be between 0 and 31536000, and calls an array of numbers. Nothing was written.';
  end if;
end
$$;

-- The default delay after a failed attempt, in seconds: it doubles each time, up to an hour.
-- Workers use the same formula, with jitter: core/pause.py.
create or replace function faultline.backoff(attempt integer) returns double precision
language sql immutable parallel safe
return least(3600, 2 ^ least(attempt, 12));

-- Whether a queued job has expired and will never run, although it was not cancelled yet: see expire.
create or replace function faultline.has_expired(
  state text, fencing_token bigint, expires_at timestamptz, at timestamptz
) returns boolean
language sql immutable parallel safe
return coalesce(state = 'queued' and fencing_token = 0 and expires_at <= at, false);

-- Whether a queued job will run from its beginning, and so see all that is committed before: it has not begun, or remembers nothing
-- of what it has done. One that has expired will not run at all.
create or replace function faultline.will_run_from_start(
  job_id uuid, fencing_token bigint, flow_id uuid, expires_at timestamptz, at timestamptz
) returns boolean
language sql stable
as $$
  select case
    when $2 = 0 then $4 is null or $4 > $5
    else $3 is null and not exists (select from faultline.steps s where s.job_id = $1)
  end
$$;
