-- The key of the advisory lock that serializes large claims of one queue.
create or replace function faultline.claim_lock(queue text) returns bigint
language sql immutable parallel safe
return hashtextextended('faultline claim ' || queue, 0);
