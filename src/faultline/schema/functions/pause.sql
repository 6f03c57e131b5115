-- Grant no more jobs of a queue until it is resumed. What runs goes on, what is enqueued waits. Paused twice, the first time
-- and the last reason stand.
create or replace function faultline.pause(queue text, reason text default null) returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  since timestamptz;
begin
  if pause.queue is null or length(pause.queue) not between 1 and 100 then
    raise exception 'a queue''s name has 1 to 100 characters' using errcode = 'FL005';
  end if;
  if pause.queue ~ '^[[:space:]]|[[:cntrl:]]|[[:space:]]$' then
    raise exception 'a queue''s name holds no control characters, and no white space at its ends' using errcode = 'FL005';
  end if;
  perform faultline.durable();
  insert into faultline.queues as q (name, paused_at, paused_because)
  values (pause.queue, faultline.clock(), left(pause.reason, 1000))
  on conflict (name) do update
  set paused_at = coalesce(q.paused_at, excluded.paused_at), paused_because = excluded.paused_because
  returning q.paused_at into since;
  return since;
end
$$;
