-- When a shard has a token of its queue's rate. Null: the queue has no rate, or there is one.
create or replace function faultline.next_token(
  queue text, number integer, shards integer, fields jsonb, at timestamptz
) returns timestamptz
language plpgsql stable
as $$
#variable_conflict use_column
declare
  rate constant double precision := faultline.rate_of(fields) / shards;
  tokens double precision;
begin
  if rate is null then
    return null;
  end if;
  select faultline.refilled(s.tokens, s.refilled_at, rate, greatest(1, (fields ->> 'burst')::double precision / shards), at)
  into tokens
  from faultline.shards s
  where s.queue = next_token.queue and s.shard = number
  order by s.changed_second desc
  limit 1;
  return case when tokens < 1 then at + make_interval(secs => (1 - tokens) / rate) end;
end
$$;
