-- Raise FL005 unless there is one failure per lease, and each makes sense: see fail.
create or replace function faultline.check_failures(failures jsonb, leases integer) returns void
language plpgsql immutable
as $$
declare
  makes_sense boolean;
begin
  begin
    makes_sense := jsonb_array_length(failures) = leases
      and not exists (
        select from jsonb_to_recordset(failures) as f ("then" text, delay_seconds float8, calls jsonb)
        where f."then" is null or f."then" not in ('retry', 'fail', 'cancel') or f.delay_seconds not between 0 and 31536000
          or jsonb_typeof(f.calls) <> 'array'
      );
  exception
    when data_exception then
      null;  -- no array, an element that is no object, or a delay that is no number
  end;
  if makes_sense is not true then
    raise exception 'failures must be an array with one {"then": "retry"|"fail"|"cancel"} per lease'
      using errcode = 'FL005',
        detail = 'delay_seconds, if given, must be between 0 and 31536000, and calls an array of numbers. Nothing was written.';
  end if;
end
$$;
