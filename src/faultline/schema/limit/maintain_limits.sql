-- Upkeep of queues with limits. Returns how many groups were forgotten.
--   each time      apply the events of queues that no worker claims from; forget up to `max_groups` groups that have nothing left
--   once a minute  apply all events; correct wrong counts of permits; count jobs that run without one; break deadlocks of groups
-- Never waits: a queue that is locked is left for the next time. At most 50 queues, others each time, so that one transaction
-- holds few locks.
create or replace function faultline.maintain_limits(max_groups integer default 500) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  one record;
  miscounted text[] := '{}';
  looked boolean := false;
  chosen constant text[] := array(select q.name from faultline.queues q where q.limited order by random() limit 50);
  forgotten integer := 0;
begin
  perform faultline.read_committed('maintain_limits');
  -- Claims wait for its locks, so it does not wait for the disk: what a crash takes back, the next call does again.
  perform faultline.allow_asynchronous_commit();
  -- The clock was ahead when `recover` was called: its hold lasts, from now on, no longer than it was meant to.
  update faultline.settings s
  set limits_held_until = faultline.clock() + s.limits_held_for
  where s.limits_held_until > faultline.clock() + s.limits_held_for;
  -- Before anything is locked: it reads all groups of a queue.
  for one in
    select q.name
    from faultline.queues q
    where q.name = any (chosen) and exists (
      select from faultline.limited_queues s
      where s.queue = q.name
        and s.all_events_applied_at not between faultline.clock() - interval '1 minute' and faultline.clock() + interval '1 second'
    )
  loop
    looked := true;
    if faultline.is_miscounted(one.name) then
      miscounted := miscounted || one.name;
    end if;
  end loop;
  if looked then
    perform faultline.break_group_deadlocks();
  end if;
  for one in select q.name from faultline.queues q where q.name = any (chosen) order by q.name loop
    forgotten := forgotten + faultline.maintain_queue(
      one.name, greatest(0, maintain_limits.max_groups - forgotten), one.name = any (miscounted)
    );
  end loop;
  return forgotten;
end
$$;
