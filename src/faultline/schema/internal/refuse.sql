-- Return why a verb wrote nothing for some leases, and record it in the journal.
-- Before: the verb has done its work for the leases at the places `done`; the other leases were lost, or somebody holds a lock on their rows.
-- After: one answer per remaining lease. `busy` is not a refusal and leaves no trace; every other one is journalled.
-- A lease whose completion stands in the ledger is not refused to `complete` (its first answer was lost, this is the second)
-- nor to `renew` (the job completed itself in its own transaction and its task goes on, or the worker does not know yet).
create or replace function faultline.refuse(
  verb text,
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  done bigint[]
) returns setof faultline.refusal
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform faultline.durable();
  return query
    with leases as (
      select * from unnest(refuse.job_ids, refuse.tokens, refuse.owners) with ordinality as l (job_id, token, owner, place)
    ),
    judged as materialized (
      select
        l.job_id, l.token, l.owner, v.current_token,
        case v.reason when 'held' then 'busy' else v.reason end as reason
      from (
        select l.job_id, l.token, l.owner from leases l
        -- By the whole lease: a stale and a good lease of one job may stand in one batch, and one lease twice.
        except
        select l.job_id, l.token, l.owner from leases l where l.place = any (refuse.done)
      ) l
      cross join lateral faultline.judge(l.job_id, l.token, l.owner) v
      where not (
        refuse.verb in ('complete', 'renew')
        and exists (
          select from faultline.ledger f
          -- One after the other, as in `complete`: a ledger that is taken for empty would be walked.
          where f.job_id = any (array[l.job_id]) and f.fencing_token = l.token and f.owner = l.owner
        )
      )
    ),
    recorded as (
      insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
      select
        faultline.clock(), g.job_id, 'stale_write_blocked', g.token, g.owner,
        jsonb_build_object(
          'verb', refuse.verb, 'reason', g.reason, 'stale_token', g.token, 'current_token', g.current_token
        )
      from judged g
      where g.reason <> 'busy'
      order by g.job_id
    )
    select g.job_id, g.token, g.owner, g.reason, g.current_token from judged g;
end
$$;
