-- Find the existing job for each job of a submission that is not new, and check that it is the same.
-- `answered` are unique ones that have another job's id already.
-- Raises FL003 if its key or id belongs to a job with another task or other arguments, or its key to another `digest`.
create or replace function faultline.resolve_known(
  jobs json, inout ids uuid[], inout news boolean[], answered boolean[] default null
)
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  known record;
begin
  for known in
    select
      s.position, s.task, s.key,
      coalesce(k.job_id, s.id) as job_id,
      (s.key is null or k.key is not null) and coalesce(k.key, o.task, f.task) is not null as found,
      k.digest <> s.key_digest
        -- Of a unique one, the job may be another's, or have been replaced.
        or not s.is_unique and (
          faultline.digest(o.task, o.args) <> s.digest
          or faultline.digest(f.task, f.args) <> s.digest
          -- The ledger may not have kept the arguments; then only the task can be compared.
          or f.task <> s.task
        ) as differs
    from (
      select
        j.position,
        resolve_known.ids[j.position] as id,
        j.task,
        j.idempotency_key as key,
        j."unique" is not null as is_unique,
        faultline.digest(j.task, a.args) as digest,
        faultline.digest(j.task, a.args, j.digest) as key_digest
      -- All at once: PostgreSQL reads a JSON text from its beginning to find one element.
      from rows from (
        json_to_recordset(resolve_known.jobs) as (task text, args json, idempotency_key text, digest text, "unique" json)
      ) with ordinality as j (task, args, idempotency_key, digest, "unique", position)
      cross join lateral (select case when json_typeof(j.args) = 'object' then j.args else '{}' end as args) a
      where not resolve_known.news[j.position] and resolve_known.answered[j.position] is not true
    ) s
    -- Looked up one by one, as in `complete`.
    left join faultline.keys k on k.key = any (array[s.key])
    left join faultline.open_jobs o on o.id = any (array[coalesce(k.job_id, s.id)])
    left join faultline.ledger f on f.job_id = any (array[coalesce(k.job_id, s.id)])
    order by s.position
  loop
    if not known.found then
      raise exception 'job % (task %) has the key or id of a job that was pruned at this moment', known.position, known.task
        using errcode = 'serialization_failure', hint = 'Nothing was enqueued; send the submission again.';
    elsif known.differs then
      raise exception 'job % (task %) is refused: its % already belongs to a job with another task or other arguments',
        known.position, known.task, case when known.key is null then 'id' else 'idempotency_key' end
        using errcode = 'FL003',
              detail = json_build_object('job_id', known.job_id)::text,
              hint = 'Nothing of this submission was enqueued. Use another key for other work.';
    end if;
    ids[known.position] := known.job_id;
  end loop;
end
$$;
