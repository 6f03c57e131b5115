-- Delete succeeded jobs of no flow that ended before `horizon`, with what is stored for them. Before: `faultline.verb` is prune, and the
-- caller plans for full tables. Returns how many, the highest token, and where their rows were.
create or replace function faultline.prune_ledger(
  horizon timestamptz, max_rows integer, out gone integer, out highest bigint, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  job_ids uuid[];
begin
  with old as (
    delete from faultline.ledger f
    where f.ctid = any (array(
      select o.ctid from faultline.ledger o
      where o.finished_at < horizon and o.flow_id is null
      limit prune_ledger.max_rows
      for update skip locked
    ))
    returning f.job_id, f.fencing_token, f.ctid
  )
  select count(*), max(o.fencing_token), array_agg(o.ctid), array_agg(o.job_id) into gone, highest, ctids, job_ids from old o;
  perform faultline.forget_steps(job_ids);
end
$$;
