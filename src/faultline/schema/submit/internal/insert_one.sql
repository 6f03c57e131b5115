-- Insert one plain job, whose values were checked, and wake workers for it, as `enqueue_many` does for several: a few of those
-- that sleep. Workers may have claimed beyond its position by the time it is committed, if it is due in the past or if its
-- transaction goes on for long: then all of them are told.
create or replace function faultline.insert_one(
  id uuid, task text, args text, queue text, priority integer, due timestamptz, max_attempts integer,
  lease_seconds double precision, keep_args boolean, trace text, at timestamptz
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  late constant boolean := insert_one.due < insert_one.at
    or pg_current_xact_id_if_assigned() is not null
    or statement_timestamp() - transaction_timestamp() > interval '5 milliseconds'
    or clock_timestamp() - statement_timestamp() > interval '50 milliseconds';
  position constant text := concat(
    insert_one.priority, ' ', least(insert_one.due, transaction_timestamp()), ' ', insert_one.queue
  );
  chosen text[];
  sleepers bigint;
begin
  if current_setting('synchronous_commit') = 'off' then
    perform faultline.require_synchronous_commit();
  end if;
  insert into faultline.open_jobs (
    id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue, task, args, trace
  )
  values (
    insert_one.id, insert_one.at, insert_one.due, insert_one.lease_seconds::real, insert_one.priority::smallint,
    insert_one.max_attempts::smallint, insert_one.keep_args, insert_one.queue, insert_one.task, insert_one.args::json,
    insert_one.trace
  );
  if insert_one.due > insert_one.at then
    return;
  end if;
  if late then
    -- Once per transaction and position. PostgreSQL removes duplicate notifications too, but only after the work is done.
    if current_setting('faultline.woken', true) is distinct from position
      and exists (select from faultline.workers w where insert_one.queue = any (w.queues))
    then
      perform faultline.wake(
        insert_one.queue, insert_one.priority, least(insert_one.due, transaction_timestamp())
      );
      perform set_config('faultline.woken', position, true);
    end if;
    return;
  end if;
  -- One look for both questions: whether anybody sleeps, and who of those was seen lately.
  select
    (array_agg(w.id order by random()) filter (
      where w.heartbeat_at > insert_one.at - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
    ))[:3],
    count(*)
  into chosen, sleepers
  from faultline.workers w
  where insert_one.queue = any (w.sleeping);
  if sleepers > 0 then
    perform faultline.wake(
      insert_one.queue, insert_one.priority, transaction_timestamp(), chosen, array[insert_one.id]
    );
  end if;
end
$$;
