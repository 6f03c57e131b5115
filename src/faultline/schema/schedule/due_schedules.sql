-- The schedules with ticks to decide about, longest due first: those with one of these digests, and those made at run time.
-- One that fails is not among them until its time comes, so that it keeps no other from its ticks. Nor are those of `but_not`,
-- which the caller has just looked at: any of them may be locked.
-- `clock` is the time to compute with: `tick` takes no tick that is later.
create or replace function faultline.due_schedules(
  digests text[], max_schedules integer default 100, but_not text[] default '{}'
) returns table (
  name text,
  revision bigint,
  next_at timestamptz,
  since timestamptz,
  spec text,
  clock timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
begin
  perform faultline.check_most('max_schedules', due_schedules.max_schedules);
  return query
    select s.name, s.revision, s.next_at, s.since, s.spec::text, at
    from faultline.schedules s
    where s.look_at <= at and (s.digest is null or s.digest = any (due_schedules.digests))
      and s.name <> all (due_schedules.but_not)
    order by s.look_at
    limit due_schedules.max_schedules;
end
$$;
