-- +goose Up
create schema if not exists spreadsheets;

create table if not exists spreadsheets.sheet (
    sheet_id  text  not null,
    file      text  not null,
    constraint sheet_pkey primary key (sheet_id)
);

comment on table spreadsheets.sheet is
    'Which file holds the sheet. A back end writes a new file for each batch of requests, and names it here in the transaction that settles them.';

-- +goose Down
drop table if exists spreadsheets.sheet;

drop schema if exists spreadsheets;
