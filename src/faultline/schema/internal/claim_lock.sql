-- The advisory lock that large claims of one queue take in turns.
create or replace function faultline.claim_lock(queue text) returns bigint
language sql immutable parallel safe
return hashtextextended('faultline claim ' || queue, 0);
