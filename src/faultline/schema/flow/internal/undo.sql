-- What sagas did is undone in runs of its own.

-- Queue a job again that has failed or was cancelled, to undo what its sagas have begun. Returns false, and changes nothing, if it has
-- begun none that it has not left, or was undone. Before: the caller has locked its row.
-- After: queued, due now, with attempts counted from zero; its open sagas have failed, which is history: see only_undo. When they are
-- undone, the job ends as it had ended. The token stays, so that writes of earlier workers are refused.
-- A saga that had failed before is enough: an undo of it has failed. What is undone is not undone again.
create or replace function faultline.begin_undo(job_id uuid, signed jsonb) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job record;
begin
  if faultline.undone_saga(begin_undo.job_id) is not null or not exists (
    select from faultline.calls c
    where c.job_id = begin_undo.job_id and c.kind = 'saga' and c.outcome is distinct from 'done'
  ) then
    return false;
  end if;
  select j.state, j.last_error, j.fencing_token into job from faultline.open_jobs j where j.id = begin_undo.job_id;
  update faultline.calls c
  set ended_at = faultline.clock(),
      ended_moment = nextval(pg_get_serial_sequence('faultline.calls', 'id')),
      outcome = 'failed',
      error = split_part(coalesce(job.last_error, job.state), E'\n', 1),
      result = case job.state when 'cancelled' then '{"then": "cancel"}'::jsonb end
  where c.job_id = begin_undo.job_id and c.kind = 'saga' and c.ended_at is null;
  perform faultline.only_undo(begin_undo.job_id, more_attempts => false);
  update faultline.open_jobs j
  set state = 'queued',
      next_run_at = faultline.clock(),
      suspended = null,
      attempt = 0,
      reaps = 0,
      started = false,
      finished_at = null,
      last_error = null,
      stopped_by = null,
      -- However late: what was begun is to be undone.
      expires_at = null
  where j.id = begin_undo.job_id;
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  values (
    faultline.clock(), begin_undo.job_id, 'undo_begun', job.fencing_token,
    jsonb_build_object('was', job.state) || begin_undo.signed
  );
  perform faultline.wake_for(array[begin_undo.job_id]);
  return true;
end
$$;

-- A saga of this job has failed, so the job does nothing more but undo. Before: the caller has locked its row.
-- After: its open children are closed, and will be cancelled: an undo must not run beside what it undoes. They are undone, and so
-- are those that were cancelled when the job had ended. With
-- `more_attempts` it has as many again as it had: a worker that dies in the last one must not leave the rest as it is.
create or replace function faultline.only_undo(job_id uuid, more_attempts boolean) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
begin
  update faultline.open_jobs j
  set max_attempts = least(1000, j.attempt + j.max_attempts)
  where j.id = only_undo.job_id and only_undo.more_attempts;
  update faultline.calls c
  set ended_at = at,
      ended_moment = nextval(pg_get_serial_sequence('faultline.calls', 'id')),
      outcome = 'closed',
      awaited = false
  where c.job_id = only_undo.job_id and c.kind = 'children' and c.ended_at is null;
  if exists (select from faultline.calls c where c.job_id = only_undo.job_id and c.kind = 'children') then
    insert into faultline.sweeps (job_id, reason) values (only_undo.job_id, 'undo');
    perform faultline.wake_resolvers();
  end if;
end
$$;

-- Have these children undo their sagas: those that were cancelled now, and those that an earlier sweep has cancelled, before there was
-- anything to undo.
create or replace function faultline.undo_children(calls bigint[], ids uuid[], locked uuid[], cancelled uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  swept uuid[];
begin
  swept := array(
    select j.id
    from unnest(calls, ids) as u (call_id, job_id)
    join faultline.open_jobs j on j.id = any (array[u.job_id])
    where j.id = any (locked) and j.id <> all (coalesce(cancelled, '{}')) and j.call_id = u.call_id
      and j.state = 'cancelled' and j.last_error = faultline.swept_error()
  );
  insert into faultline.sweeps (job_id, reason)
  select s.id, 'undo'
  from unnest(swept) as s (id)
  where exists (select from faultline.calls c where c.job_id = any (array[s.id]) and c.kind = 'children');
  perform faultline.begin_undo(p.id, '{"reason": "parent"}') from unnest(cancelled || swept) as p (id);
end
$$;

-- The number of the saga whose undoing ended this job; null: none did. A retry would only find again that it was undone.
create or replace function faultline.undone_saga(job_id uuid) returns text
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return (
    select c.number
    from faultline.open_jobs j
    join faultline.calls c on c.job_id = j.id and c.number = any (j.stopped_by)
    where j.id = undone_saga.job_id and c.kind = 'saga' and c.outcome = 'failed'
    order by string_to_array(c.number, '.')::numeric[]
    limit 1
  );
end
$$;
