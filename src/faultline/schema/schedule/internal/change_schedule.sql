-- Give a schedule another spec. Before: the caller has locked its row. With the same rule it keeps its position.
-- With another one, ticks from now on count; if a tick of the old rule is overdue, from that one on, so that a change in the
-- middle of an outage hides nothing. Never from before a tick that was decided about.
-- While overlaps are allowed, nobody remembers which jobs run. Once they are not, those of the last 10,000 ticks are looked up.
create or replace function faultline.change_schedule(id bigint, spec json, at timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform faultline.set_current_verb('change_schedule');
  update faultline.schedules s
  set spec = change_schedule.spec,
      revision = s.revision + 1,
      changed_at = change_schedule.at,
      failures = 0,
      failed_at = null,
      last_error = null,
      next_at = case when same.rule then s.next_at end,
      since = case
        when same.rule then s.since
        else greatest(least(faultline.schedule_since(change_schedule.spec, change_schedule.at), s.next_at - interval '1 microsecond'), s.last_at)
      end,
      ended_at = case when same.rule then s.ended_at end,
      jobs = case
        when coalesce(s.spec ->> 'overlap', 'allow') = 'allow' and coalesce(change_schedule.spec ->> 'overlap', 'allow') <> 'allow'
          then faultline.busy_jobs(array(
            select l.job_id
            from (
              select k.at, k.job_id from faultline.ticks k
              where k.schedule_id = s.id and k.job_id is not null and k.outcome <> 'backfilled'
              order by k.at desc
              limit 10000
            ) l
            order by l.at
          ))
        else s.jobs
      end,
      look_at = case
        when s.paused_at is not null then null
        when not same.rule then change_schedule.at
        when s.ended_at is null then coalesce(s.next_at, change_schedule.at)
      end
  from (
    select faultline.schedule_rule(o.spec) = faultline.schedule_rule(change_schedule.spec) as rule
    from faultline.schedules o
    where o.id = change_schedule.id
  ) same
  where s.id = change_schedule.id;
  perform faultline.set_current_verb('');
end
$$;
