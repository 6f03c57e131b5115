-- Queue failed and cancelled jobs again. Before: the caller has locked their rows and checked their states.
-- After: queued, due now, with attempts counted from zero. The token stays, so that writes of earlier workers are refused.
-- Of a flow, other jobs start over with them: see revive. A job of a graph waits again for the jobs that it comes after.
-- Of those with one unique key the newest takes the key, unless another job waits under it; the others are superseded.
-- `signed` says who did it and why (see `signature`).
create or replace function faultline.requeue_ended_jobs(job_ids uuid[], signed jsonb default '{}') returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  ids uuid[] := requeue_ended_jobs.job_ids;
  waiting uuid[];
  unique_ids uuid[];
begin
  if exists (select from faultline.open_jobs j where j.id = any (ids) and j.flow_id is not null) then
    ids := faultline.reopen_flows(ids);
    waiting := array(
      select distinct c.job_id from faultline.calls c where c.job_id = any (ids) and c.kind = 'after' and c.ended_at is null
    );
    update faultline.calls c set awaited = c.kind = 'after' where c.job_id = any (waiting) and c.ended_at is null;
  end if;
  with ended as materialized (
    -- The others are new, and wait.
    select j.id, j.state from faultline.open_jobs j where j.id = any (ids) and j.state in ('failed', 'cancelled')
  ),
  again as (
    update faultline.open_jobs j
    set state = 'queued',
        next_run_at = case when e.id = any (waiting) then '9999-01-01Z' else faultline.clock() end,
        suspended = case when e.id = any (waiting) then true end,
        attempt = 0,
        reaps = 0,
        started = false,
        finished_at = null,
        last_error = null,
        stopped_by = null,
        -- A person wants it to run, however late.
        expires_at = case when j.expires_at > faultline.clock() then j.expires_at end
    from ended e
    -- Looked up one by one, as in `complete`.
    where j.id = any (array[e.id])
    returning j.id, j.fencing_token, e.state as was
  )
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  select faultline.clock(), a.id, 'retried', a.fencing_token, jsonb_build_object('was', a.was) || requeue_ended_jobs.signed
  from again a;
  unique_ids := array(
    select j.id from faultline.open_jobs j where j.id = any (ids) and j.unique_key is not null and j.flow_id is null
  );
  if cardinality(unique_ids) > 0 then
    perform faultline.reclaim_unique_keys(unique_ids);
    perform faultline.supersede(unique_ids);
  end if;
  if cardinality(waiting) > 0 then
    insert into faultline.nudges (job_id, kind) select w.id, 1 from unnest(waiting) as w (id);
    perform faultline.wake_resolvers();
  end if;
  perform faultline.wake_for(ids);
end
$$;
