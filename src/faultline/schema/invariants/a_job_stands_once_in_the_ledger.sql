-- No job has two ledger rows. This counts the rows, since the primary key misses duplicates if its index is damaged.
select f.job_id, count(*) as rows
from faultline.ledger f
group by f.job_id
having count(*) > 1;
