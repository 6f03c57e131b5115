-- Revoke a key of the HTTP API. Only for the schema's owner. Revoked twice, it keeps the first time. Returns whether
-- the key exists. The journal records who did it and why: see signature.
create or replace function faultline.revoke_api_key(id uuid, by text default null, reason text default null) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(revoke_api_key.by, revoke_api_key.reason);
  key_name text;
begin
  perform faultline.require_synchronous_commit();
  update faultline.api_keys k
  set revoked_at = faultline.clock()
  where k.id = revoke_api_key.id and k.revoked_at is null
  returning k.name into key_name;
  if found then
    insert into faultline.journal (at, event, detail)
    values (
      faultline.clock(), 'api_key_revoked', jsonb_build_object('key', revoke_api_key.id, 'name', key_name) || signed
    );
    return true;
  end if;
  return exists (select from faultline.api_keys k where k.id = revoke_api_key.id);
end
$$;
