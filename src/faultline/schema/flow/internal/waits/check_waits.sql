-- Raise FL005 unless there is one array of calls per lease, and each names a call: see suspend.
create or replace function faultline.check_waits(waits jsonb, leases integer) returns void
language plpgsql immutable
as $$
begin
  if jsonb_typeof(waits) is distinct from 'array'
    or jsonb_array_length(waits) <> leases
    or exists (
      select from jsonb_array_elements(waits) as w (calls)
      where case when jsonb_typeof(w.calls) = 'array' then jsonb_array_length(w.calls) = 0 else true end
    )
  then
    raise exception 'waits must be an array with one array of calls per lease, none of them empty' using errcode = 'FL005';
  end if;
end
$$;
