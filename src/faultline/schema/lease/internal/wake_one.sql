-- Wake one worker that sleeps on a queue, any but this one. Returns whether there is one.
create or replace function faultline.wake_one(queue text, but_not text default '') returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  sleeper text;
begin
  select w.id into sleeper
  from faultline.workers w
  where wake_one.queue = any (w.sleeping) and w.id <> wake_one.but_not
    and w.heartbeat_at > faultline.clock() - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
  order by random()
  limit 1;
  if not found then
    return false;
  end if;
  perform faultline.wake(wake_one.queue, -32768, transaction_timestamp(), array[sleeper]);
  return true;
end
$$;
