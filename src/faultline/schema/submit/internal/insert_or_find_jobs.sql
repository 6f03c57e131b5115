-- Insert the jobs of a submission that may have been sent before, in whole or in part: by their ids, or by their keys.
-- Returns the id of every job in the order given, whether it is new, and the lowest position in the queues.
create or replace function faultline.insert_or_find_jobs(
  jobs json,
  at timestamptz,
  args_bytes_max integer,
  out ids uuid[],
  out news boolean[],
  out first_queue text,
  out last_queue text,
  out lowest_priority integer,
  out lowest_run_at timestamptz
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  inserted uuid[];
  named boolean;
  grouped boolean;
  keyed uuid[];
  has_unique boolean;
  answered boolean[];
  moved uuid[];
  its record;
begin
  with parsed as materialized (
    select * from faultline.parse_new_jobs(insert_or_find_jobs.jobs, insert_or_find_jobs.at, insert_or_find_jobs.args_bytes_max)
  ),
  -- What a new job is not given, but a key is. In the order of `parsed`: both are read from the beginning.
  given as materialized (
    select * from rows from (json_to_recordset(jobs) as (id uuid, digest text)) with ordinality as g (id, digest, ordinal)
  ),
  -- Keys are taken in one order by everyone: two submissions with the same keys in opposite order would deadlock.
  taken as (
    insert into faultline.keys (key, job_id, digest, created_at)
    select
      p.idempotency_key, p.id, faultline.digest(p.task, p.args, g.digest), insert_or_find_jobs.at
    from (select n.*, row_number() over () as ordinal from parsed n) p
    join given g using (ordinal)
    where p.idempotency_key is not null
    order by p.idempotency_key, p.ordinal
    on conflict (key) do nothing
    returning job_id
  ),
  inserted as (
    insert into faultline.new_jobs
    select p.* from parsed p
    -- Unique ones are judged afterwards: see insert_unique_jobs.
    where p.unique_key is null and (p.idempotency_key is null or p.id in (select t.job_id from taken t))
    -- In one order by everyone, as the keys.
    order by p.id
    on conflict (id) do nothing
    returning id
  )
  -- In the order of the jobs: a scan of `parsed` gives them as they were read.
  select
    array_agg(p.id), coalesce((select array_agg(n.id) from inserted n), '{}'),
    (select bool_or(g.id is not null) from given g), array(select t.job_id from taken t), bool_or(p.unique_key is not null),
    min(p.queue), max(p.queue),
    min(p.priority) filter (where p.unique_key is null),
    min(coalesce(p.group_at, p.next_run_at)) filter (where p.unique_key is null), bool_or(p.in_group)
  into ids, inserted, named, keyed, has_unique, first_queue, last_queue, lowest_priority, lowest_run_at, grouped
  from parsed p;
  if named and current_setting('transaction_isolation') <> 'read committed' then
    -- The look into the ledger would not see what finished since the transaction began, and run it again.
    raise exception 'jobs with an explicit id can be enqueued only in READ COMMITTED transactions'
      using errcode = 'FL005', hint = 'leave the id to the database, or use an idempotency_key';
  end if;
  if grouped then
    perform faultline.insert_arrival_events(inserted);
  end if;
  -- As a subquery, which is hashed. A plan that PostgreSQL keeps would compare each id with all in the array.
  news := array(
    select u.id in (select n.id from unnest(inserted) as n (id))
    from unnest(ids) with ordinality as u (id, ordinal)
    order by u.ordinal
  );
  if cardinality(array_positions(news, true)) > cardinality(inserted) then
    raise exception 'the submission is refused: two of its jobs have the same id'
      using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
  end if;
  if has_unique then
    its := faultline.insert_unique_jobs(insert_or_find_jobs.jobs, at, insert_or_find_jobs.args_bytes_max, ids, news, keyed);
    ids := its.ids;
    news := its.news;
    answered := its.answered;
    lowest_priority := least(lowest_priority, its.lowest_priority);
    lowest_run_at := least(lowest_run_at, its.lowest_run_at);
    -- Claims passed over them while we had them locked, or have been beyond their new time.
    perform faultline.wake_for(its.moved);
  end if;
  -- In statements of their own, which see what was committed while this one waited. An id that was made here is in no ledger,
  -- and of new jobs there is nothing to be known: the first submission under a key costs little more than one without.
  if named then
    news := faultline.delete_already_completed(ids, news);
  end if;
  if false = any (news) then
    select r.ids, r.news into ids, news from faultline.resolve_known(insert_or_find_jobs.jobs, ids, news, answered) r;
  end if;
end
$$;
