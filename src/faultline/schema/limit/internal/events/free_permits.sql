-- Give back the permits of a job that no longer runs, however it ended: a trigger, so that no verb can forget it. Only
-- `complete` does it for all its jobs at once: see free_ended.
-- In a group that keeps its order, a job that goes back to the queue keeps its group's permit until it has ended for good.
-- Not if it waits for another job of the group, as one may that called it before the group kept its order: both would wait.
create or replace function faultline.free_permits() returns trigger
language plpgsql
as $$
declare
  -- Only a job that runs holds one of the queue.
  freed constant integer := (old.state = 'running')::integer;
  freed_group boolean := old.group_key is not null;
begin
  if tg_op = 'UPDATE' then
    new.has_permit := null;
    if new.state = 'queued' and new.group_key = old.group_key
      and (faultline.group_limit(old.queue, old.group_key) ->> 'ordered')::boolean
      and not (new.suspended is true and faultline.waits_for_group(old.id, old.queue, old.group_key))
    then
      new.has_permit := true;
      freed_group := false;
    end if;
  end if;
  if freed > 0 or freed_group then
    insert into faultline.group_events (queue, freed, group_count, group_keys, freed_groups)
    select
      old.queue, freed, freed_group::integer, case when freed_group then array[old.group_key] end,
      case when freed_group then array[1] end;
    perform faultline.wake_for_free_permit(old.queue, case when freed_group then array[old.group_key] end);
  end if;
  return new;
end
$$;
