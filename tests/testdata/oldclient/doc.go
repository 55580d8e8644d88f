// Package db calls the functions of the schema "lock", one by one: a method for each, with
// arguments and results of Go's types. sqlc makes it from sql/queries; the comments there are the
// methods'.
//
// On a pool a call is a transaction of its own, and a lock on a key ends with it: lock keys on a
// pgx.Tx.
//
// The zero value of an argument is the default that SQL has for it, where there is one: an empty
// QueueID is the queue "default", a Permits of 0 is 1, nil Statuses are new and failed. Errors are
// *pgconn.PgError with the SQLSTATE that the function's comment names, and 22021 for a text with a
// NUL or one that the connection's client_encoding cannot have.
package db
