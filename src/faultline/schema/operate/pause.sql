-- Pause a queue: workers stop claiming from it until it is resumed. Running jobs finish; new jobs wait. Paused twice,
-- it keeps the first time and the last reason. The journal (see signature) and the queue's row record who did it and
-- why, once, even if the call is sent again after a lost answer.
create or replace function faultline.pause(queue text, reason text default null, by text default null) returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(pause.by, pause.reason);
  -- The login comes last, so that a forged `by` cannot hide it.
  signer constant text := concat(signed ->> 'by', ' (login ' || nullif(signed ->> 'login', signed ->> 'by') || ')');
  was faultline.queues;
  since timestamptz;
begin
  perform faultline.check_name('the name of a queue', pause.queue, 100);
  perform faultline.require_synchronous_commit();
  select * into was from faultline.queues q where q.name = pause.queue for update;
  insert into faultline.queues as q (name, paused_at, paused_reason, paused_by)
  values (pause.queue, faultline.clock(), signed ->> 'reason', signer)
  on conflict (name) do update
  set paused_at = coalesce(q.paused_at, excluded.paused_at),
      paused_reason = excluded.paused_reason,
      paused_by = excluded.paused_by
  returning q.paused_at into since;
  if (was.paused_reason, was.paused_by) is distinct from (signed ->> 'reason', signer) then
    insert into faultline.journal (at, event, detail)
    values (faultline.clock(), 'paused', jsonb_build_object('queue', pause.queue) || signed);
  end if;
  return since;
end
$$;
