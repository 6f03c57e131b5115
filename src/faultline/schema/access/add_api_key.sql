-- Add a key of the HTTP API. Only for the schema's owner. Only the key's digest is passed and stored. Without `valid`,
-- the key never expires. Returns when it expires. The journal records who did it and why: see signature.
create or replace function faultline.add_api_key(
  id uuid,
  digest bytea,
  name text,
  scopes text[],
  queues text[] default null,
  valid interval default null,
  by text default null,
  reason text default null
) returns timestamptz
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  signed constant jsonb := faultline.signature(add_api_key.by, add_api_key.reason);
begin
  perform faultline.check_name('the name of an API key', add_api_key.name, 100);
  perform faultline.require_synchronous_commit();
  insert into faultline.api_keys (id, digest, name, scopes, queues, created_at, expires_at)
  values (
    add_api_key.id, add_api_key.digest, add_api_key.name, add_api_key.scopes, add_api_key.queues, at, at + add_api_key.valid
  );
  insert into faultline.journal (at, event, detail)
  values (
    at, 'api_key_added',
    jsonb_build_object(
      'key', add_api_key.id, 'name', add_api_key.name, 'scopes', add_api_key.scopes, 'queues', add_api_key.queues,
      'expires_at', at + add_api_key.valid
    ) || signed
  );
  return at + add_api_key.valid;
end
$$;
