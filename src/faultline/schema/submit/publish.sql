-- Enqueue one job for every task that is subscribed to a topic, all or none. Returns the jobs, in the order of their tasks;
-- none if nobody has subscribed.
-- `payload` is the text of a JSON object. Each task gets those of its fields that it takes, as arguments, in the text that was
-- sent. The options of the jobs are those of the subscription; a group and a unique key may be templates over the arguments.
-- With an `id` that was made just now, the ids of the jobs follow from it: sent again after a lost answer, it gives the same jobs.
-- With an idempotency_key, each task gets one job for this topic and key, however often it is published.
create or replace function faultline.publish(
  topic text,
  payload text default '{}',
  idempotency_key text default null,
  trace text default null,
  appears_late boolean default false,
  id uuid default null
) returns table (
  task text,
  queue text,
  job_id uuid,
  created boolean
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  why text;
  fields json;
  jobs text;
  tasks text[];
  queues text[];
begin
  -- Nobody can subscribe to others: jobs would be lost in silence.
  perform faultline.check_name('the name of a topic', publish.topic, 200);
  begin
    fields := publish.payload::json;
    -- As jsonb: PostgreSQL cannot store every escape and number that is valid JSON.
    if jsonb_typeof(publish.payload::jsonb) is distinct from 'object' then
      raise exception 'the payload of topic % is refused: it must be a JSON object, whose fields become arguments', publish.topic
        using errcode = 'FL005', detail = 'Nothing was enqueued.';
    end if;
  exception
    when data_exception or program_limit_exceeded then
      get stacked diagnostics why = pg_exception_detail;
      raise exception 'the payload of topic % is refused: %', publish.topic, concat_ws('. ', sqlerrm, nullif(why, ''))
        using errcode = 'FL005', detail = 'Nothing was enqueued.';
  end;
  select
    array_agg(s.task::text order by s.task),
    array_agg(coalesce(s.options ->> 'queue', 'default') order by s.task),
    json_agg(
      (
        select json_object_agg(f.name, f.value)
        from (
          select o.key as name, case
            when o.key = 'group' and jsonb_typeof(o.value) = 'array'
              then to_json(faultline.fill_template(o.value, fields, 'the group of task ' || s.task))
            when o.key = 'unique' and jsonb_typeof(o.value -> 'key') = 'array'
              then jsonb_set(o.value, '{key}', to_jsonb(
                faultline.fill_template(o.value -> 'key', fields, 'the unique key of task ' || s.task)
              ))::json
            else o.value::json
          end as value
          from jsonb_each(s.options) o
          union all
          select 'task', to_json(s.task::text)
          union all
          select 'args', case when s.takes is null then fields else coalesce((
            select json_object_agg(p.key, p.value) from json_each(fields) p where p.key = any (s.takes)
          ), '{}') end
          union all
          -- The length of the topic in front: with it, no two pairs of names give the same key.
          select 'idempotency_key', to_json(
            concat_ws(':', 'publish', length(publish.topic), publish.topic, s.task::text, publish.idempotency_key)
          )
          where publish.idempotency_key is not null
          union all
          select 'id', to_json((left(publish.id::text, 24) || lpad(to_hex((
            ('x' || right(publish.id::text, 12))::bit(48) # ('x' || left(md5(s.task), 12))::bit(48)
          )::bigint), 12, '0'))::uuid)
          where publish.id is not null and publish.idempotency_key is null
          union all
          select 'trace', to_json(publish.trace) where publish.trace is not null
        ) f
      )
      order by s.task
    )::text
  into tasks, queues, jobs
  from faultline.subscriptions s
  where s.topic = publish.topic;
  if tasks is null then
    return;
  end if;
  return query
    select tasks[e.position], queues[e.position], e.job_id, e.created
    from faultline.enqueue_many(jobs, publish.appears_late) as e (position, job_id, created)
    order by e.position;
end
$$;

-- The same for a payload that is jsonb: in a trigger, say, `select faultline.publish('order.paid', to_jsonb(new))`.
create or replace function faultline.publish(
  topic text,
  payload jsonb,
  idempotency_key text default null,
  trace text default null,
  appears_late boolean default false,
  id uuid default null
) returns table (
  task text,
  queue text,
  job_id uuid,
  created boolean
)
language sql volatile
as $$
  select * from faultline.publish($1, $2::text, $3, $4, $5, $6);
$$;
