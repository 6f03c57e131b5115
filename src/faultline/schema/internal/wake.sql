-- Tell sleeping workers that there may be work from this place in the queue on: those that were chosen, or all of them.
-- A hint: polling is the truth. So a transaction may do without, by `set local faultline.notify = off`: one that has sent a
-- notification cannot be prepared for two-phase commit.
create or replace function faultline.wake(queue text, priority integer, run_at timestamptz, chosen text[] default null)
returns void
language sql volatile
as $$
  select pg_notify(
    'faultline', json_build_object('queue', queue, 'priority', priority, 'run_at', run_at, 'workers', chosen)::text
  )
  where coalesce(current_setting('faultline.notify', true), '') <> 'off';
$$;
