-- Delete keys of unique jobs whose job has ended and whose period was over before `horizon`. Those of open jobs are looked at again in
-- an hour. Before: the caller plans for full tables. Returns how many are gone.
create or replace function faultline.prune_unique_keys(horizon timestamptz, max_rows integer, out gone integer)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with looked as materialized (
    select a.ctid, exists (
      select from faultline.open_jobs j where j.id = a.job_id and j.state in ('queued', 'running')
    ) as is_open
    from faultline.unique_keys a
    where greatest(a.at, a.until) < horizon
    order by greatest(a.at, a.until)
    limit 10::bigint * prune_unique_keys.max_rows
  ),
  later as (
    -- Behind the others: however many jobs wait for long, those that have ended are reached.
    update faultline.unique_keys k
    set until = faultline.clock() + interval '1 hour'
    where k.ctid = any (array(
      select o.ctid from faultline.unique_keys o
      where o.ctid = any (array(select l.ctid from looked l where l.is_open))
      for update skip locked
    ))
  ),
  old as (
    delete from faultline.unique_keys k
    where k.ctid = any (array(
      select o.ctid from faultline.unique_keys o
      where o.ctid = any (array(select l.ctid from looked l where not l.is_open))
      limit prune_unique_keys.max_rows
      for update skip locked
    ))
    returning k.key
  )
  select count(*) into gone from old o;
end
$$;
