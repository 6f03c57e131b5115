-- The key with this digest, and its scopes. No row if the key is unknown, revoked or expired; the caller cannot tell which.
-- Records the minute of its use, unless another session does so now or the database is read-only (a standby): reading
-- works there too.
create or replace function faultline.api_key(digest bytea) returns table (
  id uuid,
  name text,
  scopes text[],
  queues text[],
  expires_at timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if current_setting('transaction_read_only') = 'off' then
    update faultline.api_keys k
    set last_used_at = date_trunc('minute', faultline.now())
    where k.id in (
      select u.id
      from faultline.api_keys u
      where u.digest = api_key.digest
        and u.revoked_at is null
        and u.last_used_at is distinct from date_trunc('minute', faultline.now())
      for no key update skip locked
    );
  end if;
  return query
  select k.id, k.name, k.scopes, k.queues, k.expires_at
  from faultline.api_keys k
  where k.digest = api_key.digest
    and k.revoked_at is null
    and (k.expires_at is null or k.expires_at > faultline.clock());
end
$$;
