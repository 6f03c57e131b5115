-- Those of these jobs that have not ended, with everything that they called. In the order given. One that has expired will not
-- run: after an outage, a tick may be decided before anybody has cancelled it.
create or replace function faultline.busy_jobs(jobs uuid[]) returns uuid[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return array(
    select u.id
    from unnest(busy_jobs.jobs) with ordinality as u (id, position)
    where (
        exists (select from faultline.open_jobs j where j.id = u.id and j.state in ('queued', 'running'))
        -- A flow may go on after its first job.
        or (exists (select from faultline.flows f where f.id = u.id) and faultline.is_live(u.id))
      )
      and not exists (
        select from (select * from faultline.open_jobs j where j.id = u.id offset 0) j
        where faultline.has_expired(j.state, j.fencing_token, j.expires_at, faultline.clock())
      )
    order by u.position
  );
end
$$;
