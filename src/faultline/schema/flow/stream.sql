-- Append items to a stream of a running job. Returns a refusal if the lease is lost, otherwise no row.
-- Before: the caller holds the lease. After: readers can see the items. `items` is a JSON array; `first_position` is the
-- position of its first item among all that this attempt has written to the stream, from 0. Sent again, nothing happens.
-- `reach` says where the program is: an object with, for each branch around, how many calls that has made. The program itself is
-- the branch "".
--
-- What an earlier attempt wrote is kept up to its last call on record: the program does not run again what was before that.
-- What it wrote afterwards is written again by this attempt, so it is deleted when this attempt writes for the first time: see
-- keep_written. A row with a greater token at a position that was there before tells readers so. Of a job without calls nothing is
-- kept.
create or replace function faultline.stream(
  job_id uuid,
  fencing_token bigint,
  owner text,
  name text,
  first_position integer,
  items jsonb,
  reach jsonb default '{"": 0}'
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  bytes_max constant integer := 16777216;
  begins_at integer;
  before record;
begin
  if jsonb_typeof(stream.items) is distinct from 'array' or jsonb_array_length(stream.items) = 0 then
    raise exception 'the items of a stream must be a JSON array that is not empty' using errcode = 'FL005';
  end if;
  if jsonb_typeof(stream.reach) is distinct from 'object' or stream.reach = '{}'
    or exists (select from jsonb_each(stream.reach) as r (branch, made) where jsonb_typeof(r.made) <> 'number')
  then
    raise exception 'reach must be a JSON object with a number for each branch' using errcode = 'FL005';
  end if;
  perform faultline.check_name('the name of a stream', stream.name, 200, trimmed => false);
  if stream.first_position is null or stream.first_position < 0 then
    raise exception 'a stream needs positions from 0' using errcode = 'FL005';
  end if;
  if not faultline.lock_lease(stream.job_id, stream.fencing_token, stream.owner) then
    return query
      select * from faultline.refuse('stream', array[stream.job_id], array[stream.fencing_token], array[stream.owner], '{}');
    return;
  end if;
  select s.begins_at into begins_at
  from faultline.streams s
  where s.job_id = stream.job_id and s.name = stream.name and s.fencing_token = stream.fencing_token
  limit 1;
  if begins_at is null then
    perform faultline.set_current_verb('stream');
    perform faultline.keep_written(stream.job_id, stream.name, stream.fencing_token);
    perform faultline.set_current_verb('');
  end if;
  -- The last row in the order of readers.
  select s.position + jsonb_array_length(s.chunk) as ends_at, s.bytes into before
  from faultline.streams s
  where s.job_id = stream.job_id and s.name = stream.name
  order by s.fencing_token desc, s.position desc
  limit 1;
  begins_at := coalesce(begins_at, before.ends_at, 0);
  if begins_at + stream.first_position < before.ends_at then
    return;  -- sent again
  elsif begins_at + stream.first_position > coalesce(before.ends_at, 0) then
    raise exception 'stream "%" of job %: items before position % of this attempt are missing',
      stream.name, stream.job_id, stream.first_position using errcode = 'FL005';
  end if;
  if coalesce(before.bytes, 0) + octet_length(stream.items::text) > bytes_max then
    raise exception 'stream "%" of job % would be longer than 16 MiB; nothing of this was written', stream.name, stream.job_id
      using errcode = 'FL007', hint = 'write less, write to several streams, or store it elsewhere and stream a reference';
  end if;
  insert into faultline.streams (job_id, name, fencing_token, position, chunk, bytes, begins_at, reach, written_at)
  values (
    stream.job_id, stream.name, stream.fencing_token, begins_at + stream.first_position, stream.items,
    coalesce(before.bytes, 0) + octet_length(stream.items::text), begins_at, stream.reach, faultline.clock()
  );
end
$$;
