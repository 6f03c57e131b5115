-- Write into the history of a job that it has enqueued this chunk of a call's jobs: see spawn. `known` are those that existed.
-- Before: the caller holds the lease, and the call has all earlier chunks.
create or replace function faultline.keep_chunk(
  wanted faultline.calls, first_index integer, ids uuid[], known uuid[], at timestamptz
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.calls c
  set spawned = c.spawned + cardinality(keep_chunk.ids), fencing_token = wanted.fencing_token
  where c.id = wanted.id;
  if not found then
    insert into faultline.calls (
      id, job_id, number, kind, name, digest, fencing_token, begun_at, policy, total, spawned, ended_at, outcome, result
    )
    overriding system value
    values (
      wanted.id, wanted.job_id, wanted.number, wanted.kind, wanted.name, wanted.digest, wanted.fencing_token, keep_chunk.at,
      wanted.policy, wanted.total, coalesce(cardinality(keep_chunk.ids), 0),
      case wanted.kind when 'detached' then keep_chunk.at end, case wanted.kind when 'detached' then 'done' end,
      case wanted.kind when 'detached' then to_jsonb(coalesce(keep_chunk.ids, '{}')) end
    );
  end if;
  if wanted.kind = 'children' then
    insert into faultline.edges (call_id, index, job_id)
    select wanted.id, keep_chunk.first_index + u.position - 1, u.id
    from unnest(keep_chunk.ids) with ordinality as u (id, position);
    if keep_chunk.known <> '{}' then
      perform faultline.refuse_cycle(wanted.job_id, keep_chunk.known);
      perform faultline.set_watched(keep_chunk.known);
    end if;
  end if;
  perform faultline.join_flow(wanted.job_id);
end
$$;
