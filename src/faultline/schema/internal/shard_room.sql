-- How many jobs a shard may grant of what its queue allows, by the number that run and by its tokens. Its tokens are brought
-- up to date. Without limits of the queue: any number.
create or replace function faultline.shard_room(
  inout shard faultline.shards, shards integer, fields jsonb, due timestamptz, out room integer
)
language plpgsql stable
as $$
declare
  cap constant integer := faultline.cap_of(fields);
  rate constant double precision := faultline.rate_of(fields) / shards;
begin
  room := 2147483647;
  if cap is not null then
    room := greatest(0, cap / shards + (shard.shard < cap % shards)::integer + shard.lent - shard.holding);
  end if;
  if rate is not null then
    shard.tokens := faultline.refilled(
      shard.tokens, shard.refilled_at, rate, greatest(1, (fields ->> 'burst')::double precision / shards), due
    );
    shard.refilled_at := faultline.refill_moment(shard.refilled_at, due);
    room := least(room, floor(shard.tokens)::integer);
  else
    shard.tokens := null;
    shard.refilled_at := null;
  end if;
end
$$;
