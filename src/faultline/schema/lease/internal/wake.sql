-- Notify the chosen workers, or all, that the queue may have due jobs from this position on.
-- `job_ids` are new jobs, where there are only a few: a worker that has claimed them before it hears of them need not look.
-- The first of the chosen look at once, one for each job; the others stand by in case one of those is busy.
-- Only a hint: workers poll anyway. A transaction can switch it off by `set local faultline.notify = off`: PostgreSQL
-- cannot prepare one that has sent a notification for two-phase commit.
create or replace function faultline.wake(
  queue text, priority integer, run_at timestamptz, chosen text[] default null, job_ids uuid[] default null
) returns void
language sql volatile
as $$
  select pg_notify(
    'faultline',
    json_strip_nulls(json_build_object(
      'queue', queue, 'priority', priority, 'run_at', run_at, 'workers', chosen,
      'ids', case when chosen is not null then job_ids end
    ))::text
  )
  where coalesce(current_setting('faultline.notify', true), '') <> 'off';
$$;
