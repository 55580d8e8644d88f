-- Run by the owner of the table, after, by the owner of schema lock:
--   select lock.grant_tracking_to('shop_owner');
create table shop_order (
    id       bigint generated always as identity primary key,
    customer text not null,
    item     text not null
);
-- From here on each change is a request of its customer, in the transaction that makes the change.
select lock.track_changes('shop_order', 'customer', 'outbox');
