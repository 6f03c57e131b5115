-- Whether a job of this flow is still open: queued or running. Reads all jobs of the flow, so it is asked once per flow.
create or replace function faultline.is_live(flow_id uuid) returns boolean
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return exists (
    with recursive members as (
      select is_live.flow_id as id
      union
      select e.job_id
      from members m
      cross join lateral (select c.id from faultline.calls c where c.job_id = m.id and c.kind = 'children' offset 0) c
      cross join lateral (select e.job_id from faultline.edges e where e.call_id = c.id offset 0) e
    )
    select
    from members m
    cross join lateral (select j.state, j.flow_id from faultline.open_jobs j where j.id = m.id offset 0) o
    where o.state in ('queued', 'running') and o.flow_id = is_live.flow_id
  );
end
$$;
