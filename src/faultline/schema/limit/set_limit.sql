-- Set what a queue (group ''), each of its groups ('*') or one group may do, until `reset_limit`. What people set wins over what
-- the code declares, field by field; fields that are not named stay as they are, and null takes a limit away.
-- `fields`: {"concurrency": 5, "rate": 100, "per": 60, "burst": 10, "weight": 2, "ordered": true}. A rate without `per` or `burst`
-- keeps those in force: see keep_rate.
-- It holds for jobs that are granted after the commit; running ones go on, and are counted. Returns whether anything changed.
-- The journal records who did it and why: see signature.
create or replace function faultline.set_limit(
  queue text, group_key text, fields jsonb, by text default null, reason text default null
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(set_limit.by, set_limit.reason);
  whose constant text := faultline.limited_one(set_limit.queue, set_limit.group_key);
  checked jsonb := faultline.checked_limit(set_limit.fields, whose, set_limit.group_key = '');
  known faultline.limits;
begin
  perform faultline.read_committed('set_limit');
  perform faultline.require_synchronous_commit();
  perform faultline.limit_queue(set_limit.queue);
  select * into known from faultline.limits l where l.queue = set_limit.queue and l.group_key = set_limit.group_key;
  checked := faultline.checked_limit(faultline.keep_rate(set_limit.fields, (
    select coalesce((
      select l.effective from faultline.limits l
      where l.queue = set_limit.queue and l.group_key = '*' and set_limit.group_key <> ''
    ), '{}') || coalesce(known.effective, '{}')
  )), whose, set_limit.group_key = '');
  return faultline.write_limit(
    set_limit.queue, set_limit.group_key, coalesce(known.declared, '{}'), coalesce(known.override, '{}') || checked, signed
  );
end
$$;
