-- How many jobs a queue may grant, by the number that run and by its tokens. Its tokens are brought up to date. Without limits of
-- the queue: any number.
create or replace function faultline.queue_room(
  inout limited_queue faultline.limited_queues, fields jsonb, due timestamptz, out room integer
)
language plpgsql stable
as $$
declare
  cap constant integer := faultline.cap_of(fields);
  rate constant double precision := faultline.rate_of(fields);
begin
  room := 2147483647;
  if cap is not null then
    room := greatest(0, cap - limited_queue.holding);
  end if;
  if rate is not null then
    limited_queue.tokens := faultline.refilled(
      limited_queue.tokens, limited_queue.refilled_at, rate, (fields ->> 'burst')::double precision, due
    );
    limited_queue.refilled_at := faultline.refill_moment(limited_queue.refilled_at, due);
    room := least(room, floor(limited_queue.tokens)::integer);
  else
    limited_queue.tokens := null;
    limited_queue.refilled_at := null;
  end if;
end
$$;
