-- Decide about one tick of a schedule that has come due: record it, and enqueue its job, unless the jobs that run still, `busy`, keep it
-- from that. Before: the caller has locked the schedule. After: `faultline.verb` is tick, and `busy` are the jobs that run now.
-- `outcome`: null where the tick is on record already.
create or replace function faultline.fire_tick(
  schedule faultline.schedules, at timestamptz, clock timestamptz, inout busy uuid[], out outcome text, out job_id uuid
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  overlap constant text := coalesce(schedule.spec ->> 'overlap', 'allow');
  is_new boolean;
begin
  outcome := 'fired';
  if overlap <> 'allow' then
    busy := faultline.busy_jobs(busy);
    if overlap = 'skip' and cardinality(busy) >= 1 or overlap = 'one' and cardinality(busy) >= 2 then
      outcome := 'skipped';
    end if;
  end if;
  perform faultline.set_current_verb('tick');
  insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at)
  values (schedule.id, fire_tick.at, 'tick', fire_tick.outcome, clock)
  on conflict do nothing;
  if not found then
    outcome := null;
  elsif outcome = 'fired' then
    if overlap = 'cancel' and not faultline.cancel_busy(busy) then
      -- A job is in a transaction of its own. The tick waits for it: nothing was decided.
      raise exception 'a job of schedule % cannot be cancelled now', schedule.name using errcode = '55P03';
    end if;
    select e.job_id, e.created into job_id, is_new
    from faultline.enqueue_many(json_build_array(faultline.tick_job(schedule.name, schedule.spec, fire_tick.at, clock))) e;
    -- What stands in for a unique job is somebody else's, and may be the very job that it would wait for.
    if overlap = 'one' and is_new and cardinality(busy) > 0 and not faultline.wait_behind(job_id, busy[1]) then
      raise exception 'the job of schedule % that runs cannot be waited for now', schedule.name using errcode = '55P03';
    end if;
    perform faultline.set_current_verb('tick');
    update faultline.ticks k
    set job_id = fire_tick.job_id
    where k.schedule_id = schedule.id and k.at = fire_tick.at and k.kind = 'tick';
    busy := case when overlap in ('skip', 'one') then busy || job_id else array[job_id] end;
  end if;
end
$$;
