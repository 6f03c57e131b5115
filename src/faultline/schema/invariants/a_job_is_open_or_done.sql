-- No job is both open and in the ledger.
select j.id as job_id, j.state, j.fencing_token as open_token, f.fencing_token as ledger_token
from faultline.open_jobs j
join faultline.ledger f on f.job_id = j.id;
