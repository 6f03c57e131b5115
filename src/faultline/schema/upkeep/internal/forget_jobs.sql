-- Delete ended jobs of a flow with all that is stored for them. Before: `faultline.verb` is prune, and the jobs have no
-- children any more. Returns the highest token that any of them had, and where their ledger rows were.
create or replace function faultline.forget_jobs(job_ids uuid[], out highest bigint, out ctids tid[])
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  gone record;
begin
  with done as (
    delete from faultline.ledger f where f.job_id = any (forget_jobs.job_ids) returning f.fencing_token, f.ctid
  ),
  ended as (
    delete from faultline.open_jobs j where j.id = any (forget_jobs.job_ids)
    returning j.fencing_token, j.id, j.queue, j.unique_key, j.task
  )
  select
    greatest((select max(d.fencing_token) from done d), (select max(e.fencing_token) from ended e)) as highest,
    (select array_agg(d.ctid) from done d) as ctids,
    array(select e.id from ended e) as ids,
    array(select e.queue from ended e) as queues,
    array(select e.unique_key from ended e) as keys,
    array(select e.task from ended e) as tasks
  into gone;
  highest := gone.highest;
  ctids := gone.ctids;
  perform faultline.free_keys(gone.ids, gone.queues, gone.keys, gone.tasks);
  delete from faultline.edges e
  where e.call_id = any (array(select c.id from faultline.calls c where c.job_id = any (forget_jobs.job_ids)));
  delete from faultline.calls c where c.job_id = any (forget_jobs.job_ids);
  delete from faultline.signals s where s.job_id = any (forget_jobs.job_ids);
  delete from faultline.streams s where s.job_id = any (forget_jobs.job_ids);
  delete from faultline.steps s where s.job_id = any (forget_jobs.job_ids);
  delete from faultline.sweeps s where s.job_id = any (forget_jobs.job_ids);
end
$$;
