-- When a worker should claim from a queue with limits again, if it is not notified before: the earliest moment at which a job may
-- start of which no notification tells. Now, if there is such a job already. Null: a notification will tell of all of them.
-- `-infinity`: the last claim has not looked at everything: claim at once, and the next one goes on.
create or replace function faultline.next_claim_at(queue text) returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  fields jsonb;
  limited_queue faultline.limited_queues;
  room integer;
  happened boolean;
begin
  if exists (select from faultline.settings s where s.limits_held_until > at) then
    -- `recover` holds all queues with limits until then.
    return (select s.limits_held_until from faultline.settings s);
  end if;
  select l.* into limited_queue
  from faultline.limited_queues l
  join faultline.queues q on q.name = l.queue
  where l.queue = next_claim_at.queue and q.paused_at is null
  order by l.changed_second desc
  limit 1;
  if not found then
    return null;
  end if;
  fields := coalesce((select l.effective from faultline.limits l where l.queue = next_claim_at.queue and l.group_key = ''), '{}');
  happened := faultline.has_unapplied_events(limited_queue);
  -- Without the rate: if only a token is missing, the time of the next one counts.
  room := (faultline.queue_room(limited_queue, fields - array['rate', 'per', 'burst'], at)).room;
  return least(
    (
      select r.next_run_at from faultline.open_jobs r
      where r.queue = next_claim_at.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
        and r.has_permit is null
      order by r.has_permit, r.next_run_at
      limit 1
    ),
    -- Events that are not applied yet may have freed a permit.
    case when room > 0 or happened then greatest(
      least(
        (
          select g.not_before from faultline.groups g
          where g.queue = next_claim_at.queue and g.not_before is not null order by g.not_before limit 1
        ),
        (
          select r.next_run_at from faultline.open_jobs r
          where r.queue = next_claim_at.queue and r.state = 'queued' and r.group_key is not null and r.in_group is null
            and r.has_permit
          order by r.next_run_at
          limit 1
        ),
        case when happened or faultline.has_ready_group(limited_queue) or faultline.has_due_ungrouped(next_claim_at.queue, at)
          then at
        end,
        case when limited_queue.unfinished and room > 0 then '-infinity'::timestamptz end
      ),
      faultline.next_token(limited_queue, fields, at)
    ) end
  );
end
$$;
