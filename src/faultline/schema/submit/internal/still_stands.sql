-- Does the job of this key stand in for a new one under it? `spec` is what the new one is unique by: while the other is queued, while
-- it is open, or for a period from its submission. `is_queued`: it is, and locked by the caller.
create or replace function faultline.still_stands(
  known faultline.unique_keys, is_queued boolean, spec json, at timestamptz
) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- Null, given as such: for a period only.
  scope constant text := case when spec -> 'while' is null then 'queued' else spec ->> 'while' end;
  is_over boolean;
begin
  if is_queued and scope in ('queued', 'open') then
    return true;
  elsif scope is distinct from 'open' and spec ->> 'period' is null then
    return false;
  end if;
  select j.state in ('failed', 'cancelled') or faultline.has_expired(j.state, j.fencing_token, j.expires_at, still_stands.at)
  into is_over
  from (select * from faultline.open_jobs j where j.id = known.job_id offset 0) j;
  return (
    (scope = 'open' and not is_over)
    -- A key of the future is of a clock that was ahead. What failed, was cancelled or has expired has not done the work.
    or (
      known.at > still_stands.at - make_interval(secs => (spec ->> 'period')::float8)
      and known.at <= still_stands.at + interval '1 second'
      and is_over is not true
    )
  ) is true;
end
$$;
