-- Look at up to `max_nudges` nudges: wake suspended jobs that can go on, and cancel those that come after a job that has
-- ended badly. Returns how many were woken; how many nudges are left that are worth asking for soon; and the next `cursor`.
-- Never waits for a lock: whoever holds the row of a waiting job delays that job only. All nudges of such a job become one,
-- which is looked at again after a pause that doubles each time, up to 5 seconds.
--
-- `cursor` is what the last call of this caller returned, null at first. It names the transactions whose nudges that call
-- could not see, and the nudges that it saw and left. So a call finds what was committed late, which a bound by number
-- would miss, and does not read the dead rows that vacuum cannot remove while a session holds an old snapshot.
--
-- A nudge is gone only after a look, by a transaction that had locked the row of its job before it looked.
create or replace function faultline.resolve(
  max_nudges integer default 100,
  cursor jsonb default null
) returns table (
  woken integer,
  left_over integer,
  next_cursor jsonb
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  nudges record;
  applied record;
  paused record;
  -- Nudges that were seen and left: by the last call, and then by this one.
  kept bigint[];
  looked bigint[];
begin
  perform faultline.read_committed('resolve');
  nudges := faultline.read_nudges(resolve.cursor, least(greatest(coalesce(resolve.max_nudges, 0), 1), 1000));
  kept := nudges.kept;
  left_over := nudges.left_over;
  woken := 0;
  if cardinality(nudges.chosen) > 0 then
    perform faultline.require_synchronous_commit();
    perform faultline.set_current_verb('resolve');
    applied := faultline.apply_nudges(nudges.chosen);
    looked := applied.looked;
    left_over := left_over + applied.cancelled;
    -- Nudges that another session has locked: it may die before it commits.
    kept := kept || array(select c.id from unnest(nudges.chosen) as c (id) except select l.id from unnest(looked) as l (id));
    if cardinality(applied.held) > 0 then
      paused := faultline.pause_nudges(applied.held);
      kept := kept || paused.ids;
      left_over := left_over + paused.soon;
      looked := array(select l.id from unnest(looked) as l (id) except select p.id from unnest(paused.ids) as p (id));
    end if;
    delete from faultline.nudges n where n.id = any (looked);
    perform faultline.set_current_verb('');
    woken := cardinality(applied.to_wake);
    if woken > 0 then
      perform faultline.wake_for(applied.to_wake);
    end if;
  end if;
  -- Too many rows are held: begin at the start again, rather than carry them all about.
  next_cursor := case when cardinality(kept) <= 10000 then nudges.next_cursor || jsonb_build_object('kept', to_jsonb(kept)) end;
  return next;
end
$$;
