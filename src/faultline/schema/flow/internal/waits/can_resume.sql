-- Can this job go on? `over`: yes. `failed`: no, and it never can, since a job that it comes after has ended badly.
-- Before: the caller has locked the job's row, in an earlier statement. Otherwise this would not see what was committed
-- before the lock, and whoever commits later leaves a nudge.
--
-- It can go on when one of its awaited calls is over; of those that it awaits together, when all are or one has failed.
-- `failures`: look for failed jobs among those of a call that waits for them. That reads all of them, so it is only done
-- when one has failed.
create or replace function faultline.can_resume(job_id uuid, failures boolean, out over boolean, out failed boolean)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  last constant integer := 2147483647;
  call record;
  found_index integer;
  is_over boolean;
  -- Null: none is awaited together.
  all_over boolean;
begin
  over := false;
  failed := false;
  for call in
    select c.* from faultline.calls c where c.job_id = can_resume.job_id and c.awaited and c.ended_at is null order by c.id
  loop
    is_over := coalesce(call.until <= faultline.clock(), false);
    if not is_over and call.kind in ('children', 'watch', 'after') then
      found_index := faultline.open_child(call.id, coalesce(call.open_index, last));
      if found_index is null and call.open_index is not null then
        -- All up to there have ended. One above may be open again: a job that was retried.
        found_index := faultline.open_child(call.id, last, call.open_index);
      end if;
      if found_index is not null and found_index is distinct from call.open_index then
        update faultline.calls c set open_index = found_index where c.id = call.id;
      end if;
      is_over := found_index is null and call.spawned >= coalesce(call.total, 0);
      if call.policy in ('fast', 'cancel') and (can_resume.failures or is_over) and faultline.has_failed(call.id) then
        is_over := true;
        failed := failed or call.policy = 'cancel';
      end if;
    elsif not is_over and call.kind = 'signal' then
      is_over := faultline.kept_signal(can_resume.job_id, call.name, call.number, call.fresh, call.begun_at) is not null;
    end if;
    if call.together then
      all_over := is_over and coalesce(all_over, true);
      if is_over and call.kind in ('children', 'watch') and call.policy is distinct from 'keep' then
        -- The program raises its error, and waits for none of the others.
        over := over or faultline.has_failed(call.id);
      end if;
    else
      over := over or is_over;
    end if;
    exit when over or failed;
  end loop;
  over := not failed and (over or coalesce(all_over, false));
end
$$;
