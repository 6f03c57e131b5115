-- Wake a worker that sleeps, if a job waits for a permit that is free now: of the queue, or of one of the groups. Not where
-- notifications are off: see `wake`, and `complete`.
create or replace function faultline.wake_for_free_permit(queue text, group_keys text[]) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  if current_setting('faultline.notify', true) = 'off' then
    return;
  end if;
  if (
    select l.has_unmet_demand from faultline.limited_queues l
    where l.queue = wake_for_free_permit.queue
    order by l.changed_second desc
    limit 1
  ) or exists (
    select
    from unnest(wake_for_free_permit.group_keys) as k (group_key)
    cross join lateral (
      select g.has_waiting from faultline.groups g
      where g.group_key = k.group_key and g.queue = wake_for_free_permit.queue
      order by g.changed_second desc
      limit 1
    ) g
    where g.has_waiting
  ) then
    perform faultline.wake_one(wake_for_free_permit.queue);
  end if;
end
$$;
