-- Put jobs into queues, all or none. Answers with one row per job, in the order given: its id, and whether it is new.
-- `jobs` is a JSON array of objects with `task` and, where wanted, `args`, `queue`, `priority`, `delay_seconds` or
-- `run_at`, `max_attempts`, `lease_seconds`, `idempotency_key`, `id`, `keep_args`.
-- After: every new job is queued, durably once the transaction commits.
--
-- The same idempotency_key gives the same job, also after it has finished; with another task or other args, FL003.
-- The same id does too: a submission whose answer was lost can be sent again.
--
-- `appears_late` says that the transaction goes on after this: the jobs appear when it commits, below the place where
-- workers have claimed already, so these are told. A transaction that has written or waited before is known to be such.
create or replace function faultline.enqueue_many(jobs jsonb, appears_late boolean default false) returns table (
  place bigint,
  job_id uuid,
  created boolean
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.now();
  late constant boolean := enqueue_many.appears_late
    or pg_current_xact_id_if_assigned() is not null
    or statement_timestamp() - transaction_timestamp() > interval '5 milliseconds';
  limits constant faultline.settings := (select s from faultline.settings s);
  ids uuid[];
  news boolean[];
  named boolean;
  queues text[];
  lowest_priority integer;
  lowest_run_at timestamptz;
  placed_count bigint;
begin
  if jsonb_typeof(enqueue_many.jobs) is distinct from 'array' then
    raise exception 'jobs must be a JSON array of objects' using errcode = 'FL005';
  end if;
  if current_setting('transaction_isolation') <> 'read committed' and jsonb_path_exists(enqueue_many.jobs, '$[*].id ? (@ != null)')
  then
    -- The look into the ledger would not see what finished since the transaction began, and run it again.
    raise exception 'jobs with an id of their own can be enqueued only in READ COMMITTED transactions'
      using errcode = 'FL005', hint = 'leave the id to the database, or use an idempotency_key';
  end if;
  perform faultline.durable();
  perform faultline.as_verb('enqueue');
  with parsed as materialized (
    select
      j.place,
      j.id is not null as named,
      coalesce(j.id, faultline.new_id(j.place)) as id,
      case
        when coalesce(length(j.task), 0) not between 1 and 200
          or length(j.queue) not between 1 and 100
          or jsonb_typeof(j.args) not in ('object', 'null')
          or octet_length(j.args::text) > limits.args_bytes_max
          or length(j.idempotency_key) not between 1 and 500
          or j.priority not between -1000 and 1000 or j.priority % 1 <> 0
          or j.max_attempts not between 1 and 1000 or j.max_attempts % 1 <> 0
          or j.lease_seconds not between 0.1 and 86400
          or j.delay_seconds not between 0 and 315360000
          or (j.delay_seconds is not null and j.run_at is not null)
          or j.run_at !~ '([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$'
          or j.run_at::timestamptz not between '1970-01-01Z' and '9999-01-01Z'
        then faultline.reject_job(enqueue_many.jobs, j.place, limits.args_bytes_max)
        else j.task
      end as task,
      coalesce(nullif(j.args, 'null'), '{}') as args,
      coalesce(j.queue, 'default') as queue,
      coalesce(j.priority, 0)::smallint as priority,
      coalesce(j.run_at::timestamptz, at + make_interval(secs => j.delay_seconds::float8), at) as next_run_at,
      coalesce(j.max_attempts, 5)::smallint as max_attempts,
      coalesce(j.lease_seconds, 30)::real as lease_seconds,
      coalesce(j.keep_args, true) as keep_args,
      j.idempotency_key as key
    from rows from (jsonb_to_recordset(enqueue_many.jobs) as (
      id uuid, task text, args jsonb, queue text, priority numeric, delay_seconds numeric, run_at text,
      max_attempts numeric, lease_seconds numeric, keep_args boolean, idempotency_key text
    )) with ordinality as j (
      id, task, args, queue, priority, delay_seconds, run_at, max_attempts, lease_seconds, keep_args, idempotency_key, place
    )
  ),
  -- Keys are taken in one order by everyone: two submissions with the same keys in opposite order would deadlock.
  taken as (
    insert into faultline.keys (key, job_id, digest, created_at)
    select p.key, p.id, faultline.digest(p.task, p.args), at
    from parsed p
    where p.key is not null
    order by p.key, p.place
    on conflict (key) do nothing
    returning job_id
  ),
  placed as (
    insert into faultline.open_jobs (
      id, fencing_token, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue, task,
      idempotency_key, args
    )
    select
      -- A caller's id may be that of a job that was pruned: its tokens must not be granted a second time.
      p.id, case when p.named then limits.token_floor else 0 end, at, p.next_run_at, p.lease_seconds, p.priority, p.max_attempts, p.keep_args, p.queue, p.task, p.key, p.args
    from parsed p
    where p.key is null or p.id in (select t.job_id from taken t)
    order by p.id
    on conflict (id) do nothing
    returning id
  )
  select
    array_agg(p.id order by p.place),
    array_agg(n.id is not null order by p.place),
    bool_or(p.named),
    array_agg(distinct p.queue) filter (where p.next_run_at <= at),
    min(p.priority),
    min(p.next_run_at),
    (select count(*) from placed)
  into ids, news, named, queues, lowest_priority, lowest_run_at, placed_count
  from parsed p
  left join placed n on n.id = p.id;
  perform faultline.as_verb('');

  if placed_count < cardinality(array_positions(news, true)) then
    raise exception 'this submission is refused: it gives the same id to two jobs'
      using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
  end if;
  if named or false = any (news) then
    -- In statements of their own, which see what was committed while this one waited.
    news := faultline.withdraw_done(ids, news);
    select r.ids, r.news into ids, news from faultline.resolve_known(enqueue_many.jobs, ids, news) r;
  end if;
  -- One and the same hint for all that a larger transaction enqueues, so that PostgreSQL sends it once.
  perform faultline.wake(q.name, lowest_priority, least(lowest_run_at, transaction_timestamp()))
  from unnest(queues) as q (name)
  where exists (
    select from faultline.workers w
    where q.name = any (w.sleeping)
      or (q.name = any (w.queues) and (lowest_run_at < at or late))
  );
  return query select u.place, u.id, u.new from unnest(ids, news) with ordinality as u (id, new, place);
end
$$;
