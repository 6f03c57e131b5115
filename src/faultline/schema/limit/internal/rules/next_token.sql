-- When a queue has a token of its rate. Null: it has no rate, or there is one.
create or replace function faultline.next_token(
  limited_queue faultline.limited_queues, fields jsonb, at timestamptz
) returns timestamptz
language plpgsql stable
as $$
declare
  rate constant double precision := faultline.rate_of(fields);
  tokens double precision;
begin
  if rate is null then
    return null;
  end if;
  tokens := faultline.refilled(
    limited_queue.tokens, limited_queue.refilled_at, rate, (fields ->> 'burst')::double precision, at
  );
  return case when tokens < 1 then at + make_interval(secs => (1 - tokens) / rate) end;
end
$$;
