-- Give children the group of their parent, where they have none of their own. Not if the group keeps its order: the parent
-- holds the group's only permit while it waits for them, so such a child is refused (FL005) and would never run.
create or replace function faultline.inherit_group(parent uuid, jobs json) returns json
language plpgsql stable
as $$
declare
  job record;
  is_ordered boolean;
begin
  select j.queue, j.group_key into job from faultline.open_jobs j where j.id = inherit_group.parent;
  if job.group_key is null then
    return inherit_group.jobs;
  end if;
  is_ordered := coalesce((faultline.group_limit(job.queue, job.group_key) ->> 'ordered')::boolean, false);
  if is_ordered then
    if exists (
      select from json_array_elements(inherit_group.jobs) as c (value)
      where c.value ->> 'group' = job.group_key and coalesce(c.value ->> 'queue', 'default') = job.queue
    ) then
      raise exception 'job %: a child in its group "%" is refused: the group keeps its order, and would wait for itself',
        inherit_group.parent, job.group_key
        using errcode = 'FL005', hint = 'Nothing was enqueued. Give the child another group, or another queue.';
    end if;
    return inherit_group.jobs;
  end if;
  -- As text, from the first character to the last: the arguments are stored as they were sent.
  return (
    select json_agg(case when c.value ->> 'group' is not null then c.value else (
      select json_object_agg(f.key, f.value)
      from (
        select f.key, f.value from json_each(c.value) f where f.key <> 'group'
        union all
        select 'group', to_json(job.group_key)
      ) f
    ) end order by c.nth)
    from json_array_elements(inherit_group.jobs) with ordinality as c (value, nth)
  );
end
$$;
