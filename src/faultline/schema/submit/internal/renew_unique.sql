-- Another submission is answered with this queued job, whose row the caller has locked: what of it counts from now on.
--   replace   its arguments, its group and its time; the journal records it
--   debounce  its time, from now, but not more than `at_most` (default: ten times the debounce) after it was enqueued
-- It expires with the later of the two: the one who hears that it is queued relies on a run. Until the caller commits, claims may
-- pass over it as one that has expired, so its group looks again.
create or replace function faultline.renew_unique(
  job_id uuid,
  spec json,
  at timestamptz,
  new_id uuid,
  args json,
  next_run_at timestamptz,
  expires_at timestamptz,
  group_key text
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  replaces constant boolean := coalesce(spec ->> 'then', 'keep') = 'replace';
  debounce constant float8 := (spec ->> 'debounce')::float8;
  was record;
  moves_to timestamptz;
  leaves boolean;
begin
  select j.created_at, coalesce(j.group_at, j.next_run_at) as next_run_at, j.fencing_token, j.suspended, j.group_key, j.in_group,
    j.expires_at
  into was
  from faultline.open_jobs j
  where j.id = renew_unique.job_id;
  moves_to := case
    -- A job of a graph waits for others, whatever its time.
    when was.suspended then was.next_run_at
    when debounce is not null then least(
      at + make_interval(secs => debounce),
      was.created_at + make_interval(secs => coalesce((spec ->> 'at_most')::float8, 10 * debounce))
    )
    when replaces then renew_unique.next_run_at
    else was.next_run_at
  end;
  -- After a failed attempt it waits at least as long as its backoff says.
  if was.fencing_token > 0 then
    moves_to := greatest(moves_to, was.next_run_at);
  end if;
  -- One that waits in its group has no other time: to be waited for, it must leave, and come again. To another group as well.
  leaves := moves_to <> was.next_run_at or replaces and was.group_key is distinct from renew_unique.group_key;
  update faultline.open_jobs j
  set args = case when replaces then renew_unique.args else j.args end,
      group_key = case when replaces then renew_unique.group_key else j.group_key end,
      -- Named, so that free_permits gives back what it has kept of its old group.
      state = j.state,
      next_run_at = case when j.in_group and not leaves then j.next_run_at else moves_to end,
      in_group = case when not leaves then j.in_group end,
      group_at = case when not leaves then j.group_at end,
      expires_at = case when j.expires_at is not null and renew_unique.expires_at is not null
        then greatest(j.expires_at, renew_unique.expires_at)
      end
  where j.id = renew_unique.job_id
    and (
      replaces or moves_to <> was.next_run_at
      or j.expires_at is not null and (renew_unique.expires_at is null or renew_unique.expires_at > j.expires_at)
    );
  if was.expires_at is not null and was.in_group then
    perform faultline.insert_arrival_events(array[renew_unique.job_id]);
  end if;
  if replaces and renew_unique.new_id <> renew_unique.job_id then
    insert into faultline.journal (at, job_id, event, fencing_token, detail)
    values (
      at, renew_unique.job_id, 'replaced', was.fencing_token,
      jsonb_build_object('next_run_at', moves_to, 'was_next_run_at', was.next_run_at)
    );
  end if;
end
$$;
