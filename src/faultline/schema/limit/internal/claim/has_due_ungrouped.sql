-- Whether a job of no group is due in a queue with limits, among the first 1,000 due jobs of its priority. Retried and delayed
-- jobs of groups that are due stand there, too, until claims have moved them into their groups: each claim would walk all of them.
create or replace function faultline.has_due_ungrouped(queue text, due timestamptz) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  level integer := -32769;
  found_level integer;
begin
  loop
    select j.priority into found_level
    from faultline.open_jobs j
    where j.queue = has_due_ungrouped.queue and j.state = 'queued'
      and j.priority > level and j.priority < case when level < 0 then 0 else 32768 end
    order by j.priority
    limit 1;
    -- Priority 0 is not searched for: most jobs have it, and while a session holds an old snapshot, all that had it would be walked.
    if found then
      level := found_level;
    elsif level < 0 then
      level := 0;
    else
      return false;
    end if;
    if exists (
      select
      from (
        select r.group_key, r.expires_at, r.fencing_token
        from faultline.open_jobs r
        where r.queue = has_due_ungrouped.queue and r.state = 'queued' and r.priority = level
          and r.next_run_at <= has_due_ungrouped.due
        order by r.next_run_at, r.id
        limit 1000
      ) r
      where r.group_key is null
        and (r.expires_at is null or r.expires_at > has_due_ungrouped.due or r.fencing_token > 0)
    ) then
      return true;
    end if;
  end loop;
end
$$;
