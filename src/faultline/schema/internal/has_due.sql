-- Whether a job of no group is due in a queue with limits.
create or replace function faultline.has_due(queue text, flows boolean, due timestamptz) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  level integer := -32768;
begin
  loop
    select j.priority into level
    from faultline.open_jobs j
    where j.queue = has_due.queue and j.state = 'queued' and j.priority > level
    order by j.priority
    limit 1;
    if not found then
      return false;
    end if;
    if exists (
      select from faultline.open_jobs r
      where r.queue = has_due.queue and r.state = 'queued' and r.priority = level and r.next_run_at <= has_due.due
        and r.group_key is null and (has_due.flows or r.flow_id is null)
        and (r.expires_at is null or r.expires_at > has_due.due or r.fencing_token > 0)
    ) then
      return true;
    end if;
  end loop;
end
$$;
