-- The arguments of a fork: those given as text, or those that were kept with the other job. FL005 where they are no JSON object.
create or replace function faultline.args_of_fork(job_id uuid, args text, kept json) returns json
language plpgsql immutable
as $$
declare
  given json;
begin
  begin
    given := coalesce(args_of_fork.args::json, args_of_fork.kept);
  exception when data_exception then
    raise exception 'job % cannot be forked with these arguments: %', args_of_fork.job_id, sqlerrm using errcode = 'FL005';
  end;
  if given is null then
    raise exception 'job % cannot be forked without arguments: its own were not kept', args_of_fork.job_id
      using errcode = 'FL005', hint = 'give the arguments of the fork';
  elsif json_typeof(given) <> 'object' then
    raise exception 'job % cannot be forked with these arguments: they must be a JSON object', args_of_fork.job_id
      using errcode = 'FL005';
  end if;
  return given;
end
$$;
