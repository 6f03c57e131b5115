-- Subscribe a task to a topic: from now on `publish` enqueues a job of it. Returns whether this changed anything.
-- `options` are those of its jobs, as for enqueue_many: queue, priority, max_attempts and so on. `takes` are the fields of a
-- payload that its jobs get as arguments (null: all), so that a publisher may add fields without breaking this task.
-- Subscribed again with others, it has the last ones. The journal records each change, with who made it and why.
create or replace function faultline.subscribe(
  topic text,
  task text,
  options jsonb default '{}',
  takes text[] default null,
  reason text default null,
  by text default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(subscribe.by, subscribe.reason);
  -- Of `unique`, a null means something.
  wanted constant jsonb := jsonb_strip_nulls(coalesce(subscribe.options, '{}'))
    || coalesce((select jsonb_object_agg('unique', u.value) from (select subscribe.options -> 'unique' as value) u
      where jsonb_typeof(u.value) <> 'null'), '{}');
  was faultline.subscriptions;
begin
  perform faultline.check_name('the name of a topic', subscribe.topic, 200);
  if jsonb_typeof(wanted) <> 'object' or wanted ?| array['task', 'args', 'id', 'idempotency_key', 'run_at', 'trace', 'digest', 'expires_at'] then
    raise exception 'the options of a subscription are those that all its jobs share, such as queue and priority'
      using errcode = 'FL005', hint = 'leave out task, args, id, idempotency_key, run_at, expires_at, trace and digest';
  end if;
  -- Options that no job could have would fail in every program that publishes.
  perform faultline.read_jobs(
    json_build_array((
      -- Templates are filled when somebody publishes.
      case when jsonb_typeof(wanted -> 'unique' -> 'key') = 'array' then wanted #- '{unique,key}' else wanted end
      - case when jsonb_typeof(wanted -> 'group') = 'array' then 'group' else '' end
    ) || jsonb_build_object('task', subscribe.task))::text, faultline.clock(), 1024
  );
  perform faultline.require_synchronous_commit();
  select * into was
  from faultline.subscriptions s
  where s.topic = subscribe.topic and s.task = subscribe.task;
  -- Most workers find what they would write. They wait for nobody then.
  if found and was.options = wanted and was.takes is not distinct from subscribe.takes then
    return false;
  end if;
  insert into faultline.subscriptions as s (topic, task, options, takes, subscribed_at)
  values (subscribe.topic, subscribe.task, wanted, subscribe.takes, faultline.clock())
  on conflict (topic, task) do update
  set options = excluded.options, takes = excluded.takes
  where s.options <> excluded.options or s.takes is distinct from excluded.takes;
  if not found then
    return false;
  end if;
  insert into faultline.journal (at, event, detail)
  values (
    faultline.clock(), 'subscribed',
    jsonb_build_object('topic', subscribe.topic, 'task', subscribe.task, 'options', wanted) || signed
  );
  return true;
end
$$;
