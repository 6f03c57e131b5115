-- The journal's details of an ended lease. The job's row does not keep them.
create or replace function faultline.lease_details(claimed_at timestamptz, lease_expires_at timestamptz, renewals integer)
returns jsonb
language sql stable
as $$
  select jsonb_build_object('claimed_at', claimed_at, 'lease_expires_at', lease_expires_at, 'renewals', renewals);
$$;
