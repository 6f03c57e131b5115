-- Lock a queue with limits for a claim, until the commit: its row, or null where another session holds it for a quarter of a
-- second.
create or replace function faultline.lock_limited_queue(queue text) returns faultline.limited_queues
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  patience constant text := current_setting('lock_timeout');
  found_row faultline.limited_queues;
begin
  select l.* into found_row
  from faultline.limited_queues l
  where l.queue = lock_limited_queue.queue
  order by l.changed_second desc
  limit 1
  for update skip locked;
  if found then
    return found_row;
  end if;
  perform set_config('lock_timeout', '250ms', true);
  select l.* into found_row
  from faultline.limited_queues l
  where l.queue = lock_limited_queue.queue
  order by l.changed_second desc
  limit 1
  for update;
  perform set_config('lock_timeout', patience, true);
  return found_row;
exception when lock_not_available or deadlock_detected then
  return null;
end
$$;
