-- Look at the jobs of these nudges, and wake those that can go on: their rows are locked before they are looked at. Those that come
-- after a job that has ended badly are cancelled.
-- `looked`: the nudges that no other session has locked. `held`: those of them that must be looked at again.
create or replace function faultline.apply_nudges(
  chosen bigint[], out looked bigint[], out held bigint[], out to_wake uuid[], out cancelled integer
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- Jobs that do not wait; each of their nudges, and the job that it is for.
  awake uuid[] := '{}';
  awake_nudges bigint[] := '{}';
  awake_jobs uuid[] := '{}';
  nudge record;
  job record;
  verdict record;
  batch record;
begin
  looked := '{}';
  held := '{}';
  to_wake := '{}';
  cancelled := 0;
  for nudge in
    select l.job_id, bool_or(l.kind = 1) as failures, array_agg(l.id) as ids
    from (select n.id, n.job_id, n.kind from faultline.nudges n where n.id = any (chosen) for update skip locked) l
    group by l.job_id
    order by l.job_id
  loop
    looked := looked || nudge.ids;
    select j.state, j.suspended into job from faultline.open_jobs j where j.id = nudge.job_id;
    if not found then
      continue;
    elsif job.state <> 'queued' or job.suspended is not true then
      -- It may be about to suspend, after a look that did not see the cause of this nudge: see below.
      awake := awake || nudge.job_id;
      awake_nudges := awake_nudges || nudge.ids;
      awake_jobs := awake_jobs || array_fill(nudge.job_id, array[cardinality(nudge.ids)]);
      continue;
    end if;
    select j.id, j.state, j.suspended, j.fencing_token, j.call_id, j.watched into job
    from faultline.open_jobs j
    where j.id = nudge.job_id
    for update skip locked;
    if not found then
      held := held || nudge.ids;
      continue;
    end if;
    continue when job.state <> 'queued' or job.suspended is not true;
    -- In a new statement, after the lock.
    verdict := faultline.can_resume(job.id, nudge.failures);
    if verdict.failed then
      perform faultline.cancel_waiting(job.id, faultline.unreached_error(), '{"reason": "upstream"}');
      cancelled := cancelled + 1;
    elsif verdict.over then
      update faultline.open_jobs j
      set next_run_at = least(j.next_run_at, faultline.clock()), suspended = null
      where j.id = job.id;
      to_wake := to_wake || job.id;
    end if;
  end loop;
  if cardinality(awake) > 0 then
    -- Last, because these jobs run: their workers get `busy` while this transaction holds their rows.
    select
      coalesce(array_agg(l.id) filter (where l.state = 'queued' and l.suspended), '{}') as asleep,
      coalesce(array_agg(l.id), '{}') as locked
    into batch
    from (
      select j.id, j.state, j.suspended from faultline.open_jobs j where j.id = any (awake) for update skip locked
    ) l;
    held := held || array(
      select a.nudge_id
      from unnest(awake_nudges, awake_jobs) as a (nudge_id, job_id)
      where a.job_id <> all (batch.locked) or a.job_id = any (batch.asleep)
    );
  end if;
end
$$;
