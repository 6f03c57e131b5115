-- What the journal tells of a lease that came to its end other than by success: the row itself forgets it.
create or replace function faultline.epoch(claimed_at timestamptz, lease_expires_at timestamptz, renewals integer)
returns jsonb
language sql stable
as $$
  select jsonb_build_object('claimed_at', claimed_at, 'lease_expires_at', lease_expires_at, 'renewals', renewals);
$$;
