-- Delete failed and cancelled jobs of no flow that ended before `horizon`, with what is stored for them and the unique keys that name
-- them. Before: `faultline.verb` is prune, and the caller plans for full tables. Returns how many, and the highest token.
create or replace function faultline.prune_failed(horizon timestamptz, max_rows integer, out gone integer, out highest bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  ended record;
  job_ids uuid[];
begin
  select array_agg(e.ctid) as ctids, array_agg(e.id) as ids, array_agg(e.queue) as queues, array_agg(e.unique_key) as keys,
    array_agg(e.task) as tasks
  into ended
  from (
    select o.ctid, o.id, o.queue, o.unique_key, o.task
    from faultline.open_jobs o
    where o.state in ('failed', 'cancelled') and o.finished_at < horizon and o.flow_id is null
    limit prune_failed.max_rows
    for update skip locked
  ) e;
  perform faultline.free_keys(ended.ids, ended.queues, ended.keys, ended.tasks);
  with old as (
    delete from faultline.open_jobs j
    where j.ctid = any (ended.ctids)
      -- A job goes with its key: without it, nobody would know that it failed.
      and not exists (
        select from faultline.unique_keys k
        where k.queue = j.queue and k.key = j.unique_key and k.task = j.task and k.job_id = j.id
      )
    returning j.id, j.fencing_token
  )
  select count(*), max(o.fencing_token), array_agg(o.id) into gone, highest, job_ids from old o;
  perform faultline.forget_steps(job_ids);
end
$$;
