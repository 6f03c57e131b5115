-- Let a key of the HTTP API in no more. For the owner of the schema alone. Revoked twice, the first time stands. Answers
-- whether there is such a key.
create or replace function faultline.revoke_api_key(id uuid) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform faultline.durable();
  update faultline.api_keys k
  set revoked_at = coalesce(k.revoked_at, faultline.clock())
  where k.id = revoke_api_key.id;
  return found;
end
$$;
