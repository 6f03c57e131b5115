-- Enqueue one plain job for a program: it has only the fields that are named here, and an id that was made just now. Returns
-- whether it is new. After: the job is queued, durably once the transaction commits.
-- Most jobs are enqueued one by one. The same job as a document for `enqueue_many` costs a third more, so that enqueues only
-- what is unusual, and says what is wrong with an invalid job.
-- `fresh` promises that the id was never sent before. Without it, the id may be known: when a submission is sent again whose
-- answer was lost. `args` is the text of a JSON object, as for `enqueue_many` with `fresh`.
create or replace function faultline.enqueue_one(
  id uuid,
  task text,
  args text,
  queue text,
  priority integer,
  max_attempts integer,
  lease_seconds numeric,
  keep_args boolean,
  trace text,
  fresh boolean
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  fits boolean := octet_length(enqueue_one.args) <= 1024;
  document json;
begin
  if fits is false then
    fits := octet_length(enqueue_one.args) <= (select s.args_bytes_max from faultline.settings s);
  end if;
  -- `is true`, so that a null counts as unusual. What jsonb cannot hold has an escape, a long exponent or very many digits.
  if (
    enqueue_one.fresh
    and faultline.is_time_ordered(enqueue_one.id)
    and length(enqueue_one.task) between 1 and 200
    and length(enqueue_one.queue) between 1 and 100
    and not faultline.is_unreadable(enqueue_one.queue, trimmed => true)
    and fits
    and left(enqueue_one.args, 1) = '{' and right(enqueue_one.args, 1) = '}'
    and enqueue_one.args !~ E'\\\\u|[eE][+-]?[0-9]{4,}[],}[:space:]]|[0-9]{100}'
    and enqueue_one.priority between -1000 and 1000
    and enqueue_one.max_attempts between 1 and 1000
    and enqueue_one.lease_seconds between 0.1 and 86400
    and enqueue_one.keep_args is not null
  ) is true then
    perform faultline.insert_one(
      enqueue_one.id, enqueue_one.task, enqueue_one.args, enqueue_one.queue, enqueue_one.priority, at,
      enqueue_one.max_attempts, enqueue_one.lease_seconds::float8, enqueue_one.keep_args, left(enqueue_one.trace, 55), at
    );
    return true;
  end if;
  begin
    document := enqueue_one.args::json;
  exception
    when data_exception or program_limit_exceeded then
      raise exception 'job 1 of 1 (task %) is refused: its args are not JSON: %',
        coalesce(enqueue_one.task, 'without name'), sqlerrm
        using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
  end;
  return (
    select e.created
    from faultline.enqueue_many(
      json_build_array(json_build_object(
        'id', enqueue_one.id,
        'task', enqueue_one.task,
        'args', document,
        'queue', enqueue_one.queue,
        'priority', enqueue_one.priority,
        'max_attempts', enqueue_one.max_attempts,
        'lease_seconds', enqueue_one.lease_seconds,
        'keep_args', enqueue_one.keep_args,
        'trace', enqueue_one.trace
      ))::text,
      fresh => enqueue_one.fresh
    ) e
  );
end
$$;
