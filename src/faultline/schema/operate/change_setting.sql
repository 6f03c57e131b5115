-- Change one setting of this database: a size in bytes, or how many seconds something is kept. Returns its value before.
-- The journal records who did it and why (see signature), once, even if the call is sent again after a lost answer.
create or replace function faultline.change_setting(
  name text, value bigint, reason text default null, by text default null
) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(change_setting.by, change_setting.reason);
  least_value bigint;
  greatest_value bigint;
  was bigint;
begin
  select known.least_value, known.greatest_value into least_value, greatest_value
  from (values
    ('args_bytes_max', 1024, 67108864),
    ('result_bytes_max', 1024, 67108864),
    ('keep_succeeded_seconds', 0, 3155760000),
    ('keep_failed_seconds', 0, 3155760000),
    ('keep_journal_seconds', 0, 3155760000),
    ('keep_keys_seconds', 0, 3155760000),
    ('keep_flows_seconds', 0, 3155760000)
  ) as known (name, least_value, greatest_value)
  where known.name = change_setting.name;
  if not found then
    raise exception 'there is no setting named "%"', change_setting.name
      using errcode = 'FL005', hint = 'faultline settings lists them';
  end if;
  if change_setting.value is null or change_setting.value not between least_value and greatest_value then
    raise exception '% must be a whole number from % to %', change_setting.name, least_value, greatest_value
      using errcode = 'FL005';
  end if;
  perform faultline.require_synchronous_commit();
  select to_jsonb(s) ->> change_setting.name into was from faultline.settings s for update;
  if was = change_setting.value then
    return was;
  end if;
  execute format('update faultline.settings set %I = $1', change_setting.name) using change_setting.value;
  insert into faultline.journal (at, event, detail)
  values (
    faultline.clock(), 'setting_changed',
    jsonb_build_object('setting', change_setting.name, 'value', change_setting.value, 'was', was) || signed
  );
  return was;
end
$$;
