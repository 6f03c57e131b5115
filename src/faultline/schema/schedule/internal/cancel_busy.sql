-- Cancel those of these jobs that have not ended. Returns whether all of them could be: nobody waits here for a job that is in
-- a transaction of its own.
create or replace function faultline.cancel_busy(jobs uuid[]) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  free uuid[];
begin
  free := array(
    select j.id from faultline.open_jobs j
    where j.id = any (cancel_busy.jobs) and j.state in ('queued', 'running')
    for update skip locked
  );
  if exists (
    select from faultline.open_jobs j
    where j.id = any (cancel_busy.jobs) and j.state in ('queued', 'running') and j.id <> all (free)
  ) then
    return false;
  end if;
  perform faultline.cancel(f.id, 'the next tick of its schedule has come') from unnest(free) as f (id);
  return true;
end
$$;
