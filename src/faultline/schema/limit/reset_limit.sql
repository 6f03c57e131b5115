-- Take back what people set for a queue (group ''), each of its groups ('*') or one group: what the code declares holds again.
-- Returns whether anything changed. The journal records who did it and why: see signature.
create or replace function faultline.reset_limit(
  queue text, group_key text default '', by text default null, reason text default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(reset_limit.by, reset_limit.reason);
  known faultline.limits;
begin
  perform faultline.read_committed('reset_limit');
  perform faultline.limited_one(reset_limit.queue, reset_limit.group_key);
  perform faultline.require_synchronous_commit();
  if not exists (select from faultline.queues q where q.name = reset_limit.queue and q.limited) then
    return false;
  end if;
  perform faultline.limit_queue(reset_limit.queue);
  select * into known from faultline.limits l where l.queue = reset_limit.queue and l.group_key = reset_limit.group_key;
  return faultline.write_limit(reset_limit.queue, reset_limit.group_key, coalesce(known.declared, '{}'), '{}', signed);
end
$$;
