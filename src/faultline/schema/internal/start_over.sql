-- Queue failed and cancelled jobs again. Before: the caller has locked their rows and checked their states.
-- After: queued, due now, with attempts counted from zero. The token stays, so that writes of earlier workers are refused.
-- `signed` says who did it and why (see `signature`).
create or replace function faultline.start_over(job_ids uuid[], signed jsonb default '{}') returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with ended as materialized (
    select j.id, j.state from faultline.open_jobs j where j.id = any (start_over.job_ids)
  ),
  again as (
    update faultline.open_jobs j
    set state = 'queued',
        next_run_at = faultline.clock(),
        attempt = 0,
        reaps = 0,
        started = false,
        finished_at = null,
        last_error = null
    from ended e
    -- Looked up one by one, as in `complete`.
    where j.id = any (array[e.id])
    returning j.id, j.fencing_token, e.state as was
  )
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  select faultline.clock(), a.id, 'retried', a.fencing_token, jsonb_build_object('was', a.was) || start_over.signed
  from again a;
  perform faultline.wake_for(start_over.job_ids);
end
$$;
