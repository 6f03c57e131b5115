-- Raise FL005 if one of these jobs is the job itself, or waits for it, however indirectly: they would wait for each other.
-- Its callers plan for full tables.
create or replace function faultline.refuse_cycle(job_id uuid, targets uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  cycle uuid;
begin
  with recursive waiting (id) as (
    select refuse_cycle.job_id
    union
    select c.job_id
    from waiting w
    -- Looked up one by one: in a plain join, the planner may begin with all calls.
    cross join lateral (select e.call_id from faultline.edges e where e.job_id = w.id offset 0) e
    cross join lateral (select c.job_id, c.ended_at from faultline.calls c where c.id = e.call_id offset 0) c
    where c.ended_at is null
  )
  select w.id into cycle from waiting w where w.id = any (refuse_cycle.targets) limit 1;
  if cycle = refuse_cycle.job_id then
    raise exception 'job % cannot wait for itself', refuse_cycle.job_id
      using errcode = 'FL005', hint = 'wait for another job, or give the child a key of its own';
  elsif found then
    raise exception 'job % cannot wait for job %, which waits for it', refuse_cycle.job_id, cycle
      using errcode = 'FL005', hint = 'they would wait for each other; return the result to the job that waits';
  end if;
end
$$;
