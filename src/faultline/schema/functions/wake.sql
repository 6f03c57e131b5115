-- Tell sleeping workers that there may be work from this place in the queue on. A hint: polling is the truth.
create or replace function faultline.wake(queue text, priority integer, run_at timestamptz) returns void
language sql volatile
as $$
  select pg_notify('faultline', json_build_object('queue', queue, 'priority', priority, 'run_at', run_at)::text);
$$;
