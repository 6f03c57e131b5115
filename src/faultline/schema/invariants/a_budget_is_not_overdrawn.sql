-- Nothing was taken from a budget that was not in it.
select b.name as budget, b.tokens
from faultline.budgets b
where b.tokens < 0;
