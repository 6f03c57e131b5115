-- Give children the group of their parent, where they have none of their own. Not if the group keeps its order: the parent
-- holds the group's only permit while it waits for them. So a child in such a group of its parent, or of one that waits for
-- the parent, is refused (FL005): it would never run. `named`: whether one of them names a group.
create or replace function faultline.inherit_group(parent uuid, jobs json, named boolean) returns json
language plpgsql stable
as $$
declare
  job record;
  document json := inherit_group.jobs;
  above record;
begin
  select j.queue, j.group_key into job from faultline.open_jobs j where j.id = inherit_group.parent;
  if job.group_key is null and not inherit_group.named then
    return document;
  end if;
  if job.group_key is not null and not coalesce((faultline.group_limit(job.queue, job.group_key) ->> 'ordered')::boolean, false) then
    -- As text, from the first character to the last: the arguments are stored as they were sent.
    document := (
      select json_agg(case when c.value ->> 'group' is not null then c.value else (
        select json_object_agg(f.key, f.value)
        from (
          select f.key, f.value from json_each(c.value) f where f.key <> 'group'
          union all
          select 'group', to_json(job.group_key)
        ) f
      ) end order by c.nth)
      from json_array_elements(document) with ordinality as c (value, nth)
    );
  end if;
  with recursive waiting as (
    select j.id, j.queue, j.group_key, j.call_id, 1 as depth from faultline.open_jobs j where j.id = inherit_group.parent
    union all
    select p.id, p.queue, p.group_key, p.call_id, w.depth + 1
    from waiting w
    cross join lateral (select c.job_id from faultline.calls c where c.id = w.call_id offset 0) c
    cross join lateral (
      select j.id, j.queue, j.group_key, j.call_id from faultline.open_jobs j where j.id = c.job_id offset 0
    ) p
    -- Deeper than any program goes: a circle, as only foreign SQL makes it.
    where w.depth < 1000
  )
  select w.id, w.group_key into above
  from waiting w
  where w.group_key is not null
    and exists (
      select from json_array_elements(document) as c (value)
      where c.value ->> 'group' = w.group_key and coalesce(c.value ->> 'queue', 'default') = w.queue
    )
    and (faultline.group_limit(w.queue, w.group_key) ->> 'ordered')::boolean
  limit 1;
  if found then
    raise exception 'job %: a child in the group "%" of job % is refused: the group keeps its order, and would wait for itself',
      inherit_group.parent, above.group_key, above.id
      using errcode = 'FL005', hint = 'Nothing was enqueued. Give the child another group, or another queue.';
  end if;
  return document;
end
$$;
