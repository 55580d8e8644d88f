// Package locks is the Go side of distributed locks that live in PostgreSQL or YugabyteDB, in the schema "lock".
//
// The rules are SQL functions; package db calls them one by one. This package adds what needs a program around them:
// transactions, retries and the migrations themselves.
package locks

import (
	"embed"
	"io/fs"
)

//go:embed sql/schema/*.sql
var schema embed.FS

// Migrations holds the goose migrations that make the schema "lock", at its root. Use it with goose's provider and a locker,
// or deploy sql/schema with the goose CLI; either way with the version table public.lock_goose_version, because a table
// inside "lock" would vanish with the last Down.
var Migrations fs.FS = migrations()

func migrations() fs.FS {
	sub, err := fs.Sub(schema, "sql/schema")
	if err != nil {
		panic(err) // The embedded directory is named above; only a misspelling gets here.
	}
	return sub
}
