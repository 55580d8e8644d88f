// Package yugabytelint reads migrations and function files with PostgreSQL's own parser and refuses what YugabyteDB 2025.1 and newer
// refuse, ignore or answer differently. It looks into PL/pgSQL and SQL bodies, and into dynamic SQL as far as its text stands there.
//
// The parser is C, so there is nothing here without cgo.
package yugabytelint
