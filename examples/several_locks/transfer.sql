-- Moves money between two accounts:
--   psql -X -v ON_ERROR_STOP=1 -v from=1 -v to=2 -v amount=10 -f transfer.sql "$DSN"
begin isolation level read committed;

-- Both keys in one call, which takes them in one order: a transfer the other way never deadlocks.
select lock.exclusive_all(array['account:' || :'from', 'account:' || :'to']);

-- A new statement: it sees what the holder before has committed.
-- \gset stops the script when there is no such account.
update account set balance = balance - :amount where id = :from returning id as payer \gset
update account set balance = balance + :amount where id = :to returning id as payee \gset

-- Both keys are free from here on. After an error psql ends, and the server rolls back.
commit;
