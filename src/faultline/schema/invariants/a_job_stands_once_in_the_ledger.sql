-- No job has two ledger rows. Asked of the rows themselves, since a damaged index would keep the primary key from seeing it.
select f.job_id, count(*) as rows
from faultline.ledger f
group by f.job_id
having count(*) > 1;
