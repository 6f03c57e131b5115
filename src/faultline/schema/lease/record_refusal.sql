-- Record a refused `fence` in the journal. Its exception has rolled back its transaction, so this is a separate call.
-- Records and returns nothing for a lease that is held.
create or replace function faultline.record_refusal(job_id uuid, fencing_token bigint, owner text) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  expired boolean;
begin
  select j.lease_expires_at <= faultline.clock() into expired
  from faultline.open_jobs j
  where j.id = record_refusal.job_id
    and j.fencing_token = record_refusal.fencing_token
    and j.lease_owner = record_refusal.owner;
  if expired then
    perform faultline.require_synchronous_commit();
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    values (
      faultline.clock(), record_refusal.job_id, 'stale_write_blocked', record_refusal.fencing_token, record_refusal.owner,
      jsonb_build_object(
        'verb', 'fence', 'reason', 'lease_expired',
        'stale_token', record_refusal.fencing_token, 'current_token', record_refusal.fencing_token
      )
    );
    return query
      select
        record_refusal.job_id, record_refusal.fencing_token, record_refusal.owner,
        'lease_expired', record_refusal.fencing_token;
  elsif expired is null then
    return query
      select * from faultline.refuse(
        'fence', array[record_refusal.job_id], array[record_refusal.fencing_token], array[record_refusal.owner], '{}'
      );
  end if;
end
$$;
