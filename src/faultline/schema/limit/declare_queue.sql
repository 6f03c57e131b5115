-- Declare what a queue and its groups may do, as the code says it. Every worker calls this when it starts: it writes only what
-- differs, and returns whether anything did. What people have set (`set_limit`) stays, and wins.
-- `declared`: {"queue": {fields}, "each_group": {fields}, "groups": {"tenant-7": {fields}}}, with the fields of set_limit.
-- What is no longer declared is no longer declared. A queue for which nothing is, and never was, stays one without limits.
create or replace function faultline.declare_queue(queue text, declared jsonb) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  wanted jsonb;
  known jsonb;
  was_limited boolean;
  changed boolean := false;
  one record;
begin
  perform faultline.read_committed('declare_queue');
  if jsonb_typeof(declare_queue.declared) is distinct from 'object'
    or declare_queue.declared - array['queue', 'each_group', 'groups'] <> '{}'
  then
    raise exception 'the declaration of queue % must be a JSON object with queue, each_group and groups', declare_queue.queue
      using errcode = 'FL005';
  end if;
  select coalesce(jsonb_object_agg(w.group_key, jsonb_strip_nulls(faultline.checked_limit(
    w.fields, faultline.limited_one(declare_queue.queue, w.group_key), w.group_key = ''
  ))), '{}') into wanted
  from (
    select '' as group_key, declare_queue.declared -> 'queue' as fields
    union all
    select '*', declare_queue.declared -> 'each_group'
    union all
    select g.key, g.value from jsonb_each(case jsonb_typeof(declare_queue.declared -> 'groups')
      when 'object' then declare_queue.declared -> 'groups' else '{}' end) g
  ) w
  where coalesce(jsonb_typeof(w.fields), 'null') <> 'null';
  select q.limited into was_limited from faultline.queues q where q.name = declare_queue.queue;
  select coalesce(jsonb_object_agg(l.group_key, l.declared), '{}') into known
  from faultline.limits l
  where l.queue = declare_queue.queue and l.declared <> '{}';
  if wanted = '{}' and was_limited is not true then
    return false;
  end if;
  if was_limited and known = (
      select coalesce(jsonb_object_agg(w.key, w.value), '{}') from jsonb_each(wanted) w where w.value <> '{}'
    )
  then
    return false;
  end if;
  perform faultline.require_synchronous_commit();
  perform faultline.limit_queue(declare_queue.queue);
  changed := was_limited is not true;
  for one in
    select k.key, coalesce(wanted -> k.key, '{}') as fields, coalesce(l.override, '{}') as override
    from (select w.key from jsonb_each(wanted) w union select k.key from jsonb_each(known) k) k
    left join faultline.limits l on l.queue = declare_queue.queue and l.group_key = k.key
    order by k.key
  loop
    changed := faultline.write_limit(declare_queue.queue, one.key, one.fields, one.override, faultline.signature()) or changed;
  end loop;
  return changed;
end
$$;
