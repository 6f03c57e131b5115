-- Refuse to fork a job (FL002) whose history before `cut` cannot be gone on with: it is the root of a graph, a saga was undone, or
-- what it comes after has not ended. `cut` is the number of a call, as numbers; null: the whole history.
create or replace function faultline.refuse_fork(job_id uuid, cut numeric[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  undone text;
begin
  if exists (select from faultline.calls c where c.job_id = refuse_fork.job_id and c.number = '0' and c.kind = 'children') then
    raise exception 'job % cannot be forked: it only waits for the jobs of a graph', refuse_fork.job_id
      using errcode = 'FL002', hint = 'fork one of these jobs, or enqueue the graph again';
  end if;
  select c.number into undone
  from faultline.calls c
  where c.job_id = refuse_fork.job_id and c.kind = 'saga' and c.outcome = 'failed'
    and (cut is null or string_to_array(c.number, '.')::numeric[] < cut)
  order by string_to_array(c.number, '.')::numeric[]
  limit 1;
  if undone is not null then
    raise exception 'job % cannot be forked there: the saga that began with call % was undone', refuse_fork.job_id, undone
      using errcode = 'FL002', hint = format('fork it before call %s', undone);
  end if;
  if exists (
    select from faultline.calls c
    where c.job_id = refuse_fork.job_id and c.kind = 'after' and c.ended_at is null
      and faultline.open_child(c.id, 2147483647) is not null
  ) then
    raise exception 'job % cannot be forked yet: jobs that it comes after have not ended', refuse_fork.job_id using errcode = 'FL002';
  end if;
end
$$;
