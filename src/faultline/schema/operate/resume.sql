-- Resume a queue and wake its workers. Returns whether it was paused. The journal records who did it and why: see
-- signature.
create or replace function faultline.resume(queue text, by text default null, reason text default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(resume.by, resume.reason);
  since timestamptz;
begin
  perform faultline.check_name('the name of a queue', resume.queue, 100, known => true);
  perform faultline.require_synchronous_commit();
  select q.paused_at into since
  from faultline.queues q
  where q.name = resume.queue and q.paused_at is not null
  for update;
  if not found then
    return false;
  end if;
  update faultline.queues q set paused_at = null, paused_reason = null, paused_by = null where q.name = resume.queue;
  -- The row says nothing more, unless the queue has limits.
  delete from faultline.queues q where q.name = resume.queue and not q.limited;
  insert into faultline.journal (at, event, detail)
  values (
    faultline.clock(), 'resumed', jsonb_build_object('queue', resume.queue, 'paused_at', since) || signed
  );
  -- From the lowest position: jobs enqueued during the pause may be below the bounds of the workers.
  perform faultline.wake(resume.queue, -32768, '1970-01-01 00:00:00+00');
  return true;
end
$$;
