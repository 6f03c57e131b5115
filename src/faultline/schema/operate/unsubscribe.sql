-- End a subscription: `publish` enqueues no more jobs of this task for the topic. Returns whether there was one.
-- Jobs that were enqueued before stay. A worker that still has the task subscribed writes it again when it starts.
-- The journal records who did it and why: see signature.
create or replace function faultline.unsubscribe(
  topic text, task text, reason text default null, by text default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(unsubscribe.by, unsubscribe.reason);
begin
  perform faultline.check_name('the name of a topic', unsubscribe.topic, 200, known => true);
  perform faultline.check_name('the name of a task', unsubscribe.task, 200, known => true);
  perform faultline.require_synchronous_commit();
  delete from faultline.subscriptions s where s.topic = unsubscribe.topic and s.task = unsubscribe.task;
  if not found then
    return false;
  end if;
  insert into faultline.journal (at, event, detail)
  values (
    faultline.clock(), 'unsubscribed',
    jsonb_build_object('topic', unsubscribe.topic, 'task', unsubscribe.task) || signed
  );
  return true;
end
$$;
