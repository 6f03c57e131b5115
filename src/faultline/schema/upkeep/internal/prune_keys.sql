-- Delete idempotency keys from before `horizon` whose jobs are not open. Before: the caller plans for full tables. Returns how many,
-- and where they were.
create or replace function faultline.prune_keys(horizon timestamptz, max_rows integer, out gone integer, out ctids tid[])
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with old as (
    delete from faultline.keys k
    where k.ctid = any (array(
      select o.ctid from faultline.keys o
      where o.created_at < horizon
        and not exists (select from faultline.open_jobs j where j.id = o.job_id)
      limit prune_keys.max_rows
      for update of o skip locked
    ))
    returning k.ctid
  )
  select count(*), array_agg(o.ctid) into gone, ctids from old o;
end
$$;
