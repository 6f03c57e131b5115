-- Enqueue jobs, all or none. Returns one row per job, in the order given: its id, and whether it is new.
-- `jobs` is the text of a JSON array of objects with `task` and, where wanted, `args`, `queue`, `priority`, `delay_seconds` or
-- `run_at`, `max_attempts`, `lease_seconds`, `idempotency_key`, `id`, `keep_args`, `trace`, `digest`, `group`, `expires_seconds` or
-- `expires_at` (if no worker has claimed it by then, it is cancelled), `unique`: an object with
--   key       what it is unique by, in its queue. Default: its task and arguments
--   while     "queued" (default): one that is queued stands in for it. "open": one that is running does, too
--   period    one that was enqueued at most so many seconds ago does, unless it failed or was cancelled
--   then      "keep" (default), or "replace": the queued job gets the arguments and the time of this one
--   debounce  it runs so many seconds after the last submission, and at most `at_most` seconds after the first
-- A submission that is answered with a queued job is followed by a run that starts after its commit.
-- After: every new job is queued, durably once the transaction commits. The text of its `args` is kept as it was sent: as jsonb,
-- 1e16 would come back as an integer, -0.0 as 0.0, keys in another order, and [1e300] a hundred times as long.
--
-- The same idempotency_key gives the same job, also after it has finished; with another task or other args, FL003.
-- `digest` is any text that must be the same as well: of a request, say, of which task and args are but a part.
-- The same id does too: a submission whose answer was lost can be sent again.
--
-- `fresh` promises that every job has an id which was made just now and never sent before, and no key. Then nothing can be
-- known of it, and nothing is looked up. It is for programs that write the document rightly: names are not checked either.
--
-- `appears_late` says that the transaction goes on after this: the jobs appear when it commits, below the place where
-- workers have claimed already, so these are told. A transaction that has written or waited before is known to be such.
create or replace function faultline.enqueue_many(
  jobs text,
  appears_late boolean default false,
  fresh boolean default false
) returns table (
  ordinal bigint,
  job_id uuid,
  created boolean
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  document json;
  late boolean := enqueue_many.appears_late
    or pg_current_xact_id_if_assigned() is not null
    or statement_timestamp() - transaction_timestamp() > interval '5 milliseconds';
  limits constant faultline.settings := (select s from faultline.settings s);
  ids uuid[];
  news boolean[];
  some_key text;
  first_queue text;
  last_queue text;
  lowest_priority integer;
  lowest_run_at timestamptz;
  grouped boolean;
begin
  perform faultline.require_synchronous_commit();
  if enqueue_many.fresh then
    document := enqueue_many.jobs::json;
    -- What jsonb cannot hold has an escape, a long exponent or very many digits. To look for these first costs a tenth of what
    -- it costs to read everything as jsonb.
    if enqueue_many.jobs ~ '\\u|[eE][+-]?[0-9]{4,}[],}[:space:]]|[0-9]{100}' then
      document := faultline.read_jobs(enqueue_many.jobs, at, limits.args_bytes_max);
    end if;
    with inserted as (
      insert into faultline.new_jobs
      select * from faultline.parse_new_jobs(document, at, limits.args_bytes_max)
      returning id, queue, priority, coalesce(group_at, next_run_at) as run_at, coalesce(idempotency_key, unique_key) as key,
        in_group
    )
    select
      array_agg(n.id), array_fill(true, array[count(*)::integer]), max(n.key),
      min(n.queue), max(n.queue), min(n.priority), min(n.run_at), bool_or(n.in_group)
    into ids, news, some_key, first_queue, last_queue, lowest_priority, lowest_run_at, grouped
    from inserted n;
    if some_key is not null then
      raise exception 'with fresh => true, jobs cannot have idempotency keys or be unique' using errcode = 'FL005';
    end if;
    if grouped then
      perform faultline.insert_arrival_events(ids);
    end if;
  else
    document := faultline.read_jobs(enqueue_many.jobs, at, limits.args_bytes_max);
    select k.ids, k.news, k.first_queue, k.last_queue, k.lowest_priority, k.lowest_run_at
    into ids, news, first_queue, last_queue, lowest_priority, lowest_run_at
    from faultline.insert_or_find_jobs(document, at, limits.args_bytes_max) k;
  end if;
  -- It may have waited for a key of somebody else's: by now later jobs may have been claimed.
  late := late or clock_timestamp() - statement_timestamp() > interval '50 milliseconds';
  -- One and the same hint for all that a larger transaction enqueues, so that PostgreSQL sends it once.
  -- A few jobs are not for everybody: all would claim, and all but one in vain. Two more are woken than there are jobs, of
  -- those that were seen lately; the others look by themselves soon enough.
  perform faultline.wake(
    q.name, lowest_priority, least(lowest_run_at, transaction_timestamp()), q.chosen,
    case when first_queue = last_queue and not (false = any (news)) then ids end
  )
  from (
    select
      served.name,
      case when lowest_run_at = at and not late and cardinality(ids) <= 20 then
        (array_agg(w.id order by random()) filter (
          where w.heartbeat_at > at - interval '3 seconds' and octet_length(to_json(w.id)::text) <= 100
        ))[:cardinality(ids) + 2]
      end as chosen
    from faultline.workers w cross join unnest(w.queues) as served (name)
    where served.name = any (w.sleeping) or lowest_run_at < at or late
    group by served.name
  ) q
  where lowest_run_at <= at
    and q.name between first_queue and last_queue
    and (first_queue = last_queue or exists (
      select from json_array_elements(document) j where coalesce(j ->> 'queue', 'default') = q.name
    ));
  return query select u.ordinal, u.id, u.new from unnest(ids, news) with ordinality as u (id, new, ordinal);
end
$$;

-- The same for a document that is json.
create or replace function faultline.enqueue_many(
  jobs json,
  appears_late boolean default false,
  fresh boolean default false
) returns table (
  ordinal bigint,
  job_id uuid,
  created boolean
)
language sql volatile
as $$
  select * from faultline.enqueue_many($1::text, $2, $3);
$$;
