-- Raise FL005 unless a program may record this call: see record.
create or replace function faultline.check_call(
  job_id uuid, number text, kind text, name text, outcome text, until_seconds float8
) returns void
language plpgsql immutable
as $$
begin
  if (
    number ~ '^[0-9]{1,9}([.][0-9]{1,9})*$'
    and length(number) <= 200
    and length(name) between 1 and 200
    and not faultline.is_unreadable(name)
    and kind is not null
  ) is not true then
    raise exception 'job %: a call needs a number such as 3 or 3.1, a kind, and a name of 1 to 200 characters without control characters; not "%", %, "%"',
      job_id, number, kind, name using errcode = 'FL005';
  elsif until_seconds not between 0 and 315360000 then
    raise exception 'job %: call %, % "%", cannot wait for % seconds; it can for 0 to 315360000',
      job_id, number, kind, name, until_seconds using errcode = 'FL005';
  elsif outcome <> 'closed' and kind in ('signal', 'children', 'watch', 'after') then
    -- How these end is for the database to say, by what it has under the lock.
    raise exception 'job %: call %, % "%", cannot be recorded as %; % says how it ends',
      job_id, number, kind, name, outcome, case kind when 'signal' then 'receive' else 'collect_outcomes' end
      using errcode = 'FL005';
  end if;
end
$$;
