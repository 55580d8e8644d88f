package locks

import (
	"cmp"
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A pipeline is a connection that sends what stands around a query together with it, in the
// connection's query exec mode. YugabyteDB gets each statement in a message of its own. It may
// start a statement again by itself, and in a pipeline that can undo what the others did.
type pipeline struct {
	*pgx.Conn
	begins  bool             // a transaction, before the query
	then    []string         // is sent after the query
	tx      pgx.Tx           // what it began
	results pgx.BatchResults // nil on YugabyteDB
}

func (p *pipeline) send(ctx context.Context, sql string, args []any) {
	batch, begin := &pgx.Batch{}, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	if p.begins {
		batch.BeginTx(begin)
	}
	if strings.Contains(p.PgConn().ParameterStatus("server_version"), "-YB-") {
		if p.begins {
			var err error
			if p.tx, err = p.BeginTx(ctx, begin); err != nil {
				p.results = pgx.FailedBatchResults(batch, err)
				p.tx = p.results.Tx()
			}
		}
		return
	}
	batch.Queue(sql, args...)
	for _, sql := range p.then {
		batch.Queue(sql)
	}
	p.results = p.SendBatch(ctx, batch)
	if p.begins {
		p.tx = p.results.Tx()
		p.results.Exec()
	}
}

func (p *pipeline) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if p.send(ctx, sql, args); p.results == nil {
		return p.Conn.Query(ctx, sql, args...)
	}
	return p.results.Query()
}

func (p *pipeline) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if p.send(ctx, sql, args); p.results == nil {
		return p.Conn.QueryRow(ctx, sql, args...)
	}
	return p.results.QueryRow()
}

// close ends it, once the query's rows are closed; err is how the query ended.
func (p *pipeline) close(ctx context.Context, err error) error {
	if p.results != nil {
		return cmp.Or(err, p.results.Close())
	}
	for _, sql := range p.then {
		if err == nil {
			_, err = p.Exec(ctx, sql)
		}
	}
	return err
}
