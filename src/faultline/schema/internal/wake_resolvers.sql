-- Tell workers that there is something to resolve or to sweep. Only a hint: they look once a second anyway.
-- Builds that know no flows read it as work for no queue and no worker.
create or replace function faultline.wake_resolvers() returns void
language sql volatile
as $$
  select pg_notify(
    'faultline', '{"nudge": true, "queue": "", "priority": 0, "run_at": "2000-01-01T00:00:00+00:00", "workers": []}'
  )
  where coalesce(current_setting('faultline.notify', true), '') <> 'off';
$$;
