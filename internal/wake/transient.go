package wake

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Transient says whether err can be gone at the next attempt: the connection failed or was too
// slow, the server is going down, is full or is a standby for now, or the database asked for a
// retry or ran into a timeout. So it is with whatever is said to somebody who connects: the
// password is being changed, or the database restored. Not so a pool that its owner has closed,
// which pgx says in words only.
func Transient(err error) bool {
	var refused *pgconn.ConnectError
	if errors.As(err, &refused) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return !errors.Is(err, context.Canceled) && !strings.HasSuffix(err.Error(), "closed pool")
	}
	class := pg.Code[:min(2, len(pg.Code))]
	return slices.Contains([]string{"08", "40", "53", "57", "58"}, class) ||
		pg.Code == "25006" || pg.Code == "55P03" ||
		pg.Code == "XX000" && strings.Contains(pg.Message, "cache lookup failed")
}
