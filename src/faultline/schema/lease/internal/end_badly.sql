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
