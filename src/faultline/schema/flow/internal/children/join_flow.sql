-- Make a job a member of a flow: of its own, if it has none. Returns the flow's id. Null: the job is not open.
-- Before: the caller has locked the job's row.
create or replace function faultline.join_flow(job_id uuid) returns uuid
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.open_jobs j set flow_id = j.id where j.id = join_flow.job_id and j.flow_id is null;
  if found then
    insert into faultline.flows (id, begun_at) values (join_flow.job_id, faultline.clock()) on conflict do nothing;
    return join_flow.job_id;
  end if;
  return (select j.flow_id from faultline.open_jobs j where j.id = join_flow.job_id);
end
$$;
