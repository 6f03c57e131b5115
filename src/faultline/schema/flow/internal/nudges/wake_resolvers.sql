-- Tell workers that there is something to resolve or to sweep. Only a hint: they look once a second anyway.
create or replace function faultline.wake_resolvers() returns void
language sql volatile
as $$
  select pg_notify('faultline', '{"nudge": true}')
  where coalesce(current_setting('faultline.notify', true), '') <> 'off';
$$;
