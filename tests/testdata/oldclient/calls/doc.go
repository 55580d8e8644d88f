// Package calls has the functions of schema "lock" that only the loops of this module call. sqlc
// makes it from sql/queries/internal, as it makes package db.
package calls
