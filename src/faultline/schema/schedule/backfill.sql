-- Run ticks of the past that made no job: missed ones, skipped ones, and those from before there was the schedule. Returns how
-- many jobs it enqueued; ticks that have a job are left out. All or none.
-- `ticks` are moments as the rule has them, at most 10,000. Overlaps are allowed: whoever asks for a hundred wants a hundred.
-- The journal records who did it and why: see signature.
-- With `only_queues`, a schedule whose jobs go to another queue is not found.
create or replace function faultline.backfill(
  name text, ticks timestamptz[], by text default null, reason text default null, only_queues text[] default null
) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(backfill.by, backfill.reason);
  at timestamptz;
  s faultline.schedules;
  wanted timestamptz[];
begin
  if cardinality(backfill.ticks) > 10000 then
    raise exception 'a backfill of % ticks is refused; at most 10000 are allowed', cardinality(backfill.ticks)
      using errcode = 'FL005', hint = 'backfill shorter times, one after the other';
  end if;
  perform faultline.require_synchronous_commit();
  select * into s from faultline.schedules c
  where c.name = backfill.name
    and (backfill.only_queues is null or coalesce(c.spec -> 'job' ->> 'queue', 'default') = any (backfill.only_queues))
  for update;
  if not found then
    perform faultline.no_schedule(backfill.name);
  end if;
  perform faultline.check_moment(format('a tick of schedule %s', backfill.name), t.at) from unnest(backfill.ticks) as t (at);
  at := faultline.clock();
  if exists (select from unnest(backfill.ticks) as t (at) where t.at is null or t.at > at or s.paused_at is null and t.at >= s.next_at) then
    raise exception 'schedule % cannot be backfilled with ticks that have yet to come', backfill.name using errcode = 'FL005';
  end if;
  wanted := array(
    select distinct t.at
    from unnest(backfill.ticks) as t (at)
    where not exists (
      select from faultline.ticks k
      where k.schedule_id = s.id and k.at = t.at and k.kind = 'tick' and k.outcome <> 'skipped'
    )
    order by t.at
  );
  if cardinality(wanted) = 0 then
    return 0;
  end if;
  perform faultline.set_current_verb('backfill');
  with made as materialized (
    select e.position, e.job_id
    from faultline.enqueue_many((
      select json_agg(faultline.tick_job(s.name, s.spec, w.at, at, false) order by w.position)::text
      from unnest(wanted) with ordinality as w (at, position)
    )) as e (position, job_id, created)
  )
  insert into faultline.ticks as k (schedule_id, at, kind, outcome, decided_at, job_id)
  select s.id, wanted[m.position], 'tick', 'backfilled', at, m.job_id
  from made m
  on conflict (schedule_id, at, kind) do update
  set outcome = 'backfilled', decided_at = excluded.decided_at, job_id = excluded.job_id
  where k.outcome = 'skipped';
  perform faultline.set_current_verb('');
  perform faultline.schedule_changed(
    s.name, null,
    json_build_object('backfilled', cardinality(wanted), 'from', wanted[1], 'to', wanted[cardinality(wanted)]), signed
  );
  return cardinality(wanted);
end
$$;
