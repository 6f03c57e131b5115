-- Notify the chosen workers, or all, that the queue may have due jobs from this position on.
-- Only a hint: workers poll anyway. A transaction can switch it off by `set local faultline.notify = off`: PostgreSQL
-- cannot prepare one that has sent a notification for two-phase commit.
create or replace function faultline.wake(queue text, priority integer, run_at timestamptz, chosen text[] default null)
returns void
language sql volatile
as $$
  select pg_notify(
    'faultline', json_build_object('queue', queue, 'priority', priority, 'run_at', run_at, 'workers', chosen)::text
  )
  where coalesce(current_setting('faultline.notify', true), '') <> 'off';
$$;
