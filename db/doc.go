// Package db calls the functions of the schema "lock", one by one: a method for each, with arguments and results of Go's types. sqlc makes
// it from sql/queries; the comments there are the methods'.
//
// On a pool a call is a transaction of its own, and a lock on a key ends with it: lock keys on a pgx.Tx.
//
// An empty QueueID is SQL's default, as everywhere in this module. Anything else that is no pointer in a Params struct is sent as it
// is, and an empty one is not SQL's default: Permits is 1 for a lease that is held by one, Statuses says which tasks to take, and a nil slice is null. A nil pointer
// leaves the argument out. Errors are *pgconn.PgError with the SQLSTATE that the function's comment names, and 22021 for a text
// with a NUL or one that the connection's client_encoding cannot have.
package db
