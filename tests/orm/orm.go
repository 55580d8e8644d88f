// Package orm is the code of docs/orm.md: an order that is taken under its customer's key, with a
// task and a request, in a transaction of each library.
package orm

import (
	"context"
	"database/sql"
	"fmt"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/seed4787c507/locks"
)

type Order struct {
	ID       string `db:"id" bun:",pk"`
	Customer string `db:"customer"`
}

// Conns are what the libraries make of one *sql.DB.
type Conns struct {
	SQL  *sql.DB
	Sqlx *sqlx.DB
	Gorm *gorm.DB
	Bun  *bun.DB
	Ent  *entsql.Driver
}

func Open(dsn string) (c Conns, err error) {
	if c.SQL, err = sql.Open("pgx", dsn); err != nil {
		return c, err
	}
	c.Sqlx = sqlx.NewDb(c.SQL, "pgx")
	c.Bun = bun.NewDB(c.SQL, pgdialect.New())
	c.Ent = entsql.OpenDB(dialect.Postgres, c.SQL)
	c.Gorm, err = gorm.Open(postgres.New(postgres.Config{Conn: c.SQL}))
	return c, err
}

func TakeSQL(ctx context.Context, conn *sql.DB, order Order, mail string) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, call := range []struct {
		sql  string
		args []any
	}{
		{"select lock.exclusive($1)", []any{"customer:" + order.Customer}},
		{"insert into orders (id, customer) values ($1, $2)", []any{order.ID, order.Customer}},
		{"select lock.create_task($1, 'mail', payload => $2)", []any{order.ID, mail}},
		{"select lock.enqueue('update', $1, queue_id => 'bills')", []any{order.Customer}},
	} {
		if _, err := tx.ExecContext(ctx, call.sql, call.args...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func TakeSqlx(ctx context.Context, conn *sqlx.DB, order Order, mail string) error {
	tx, err := conn.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	_, err = tx.ExecContext(ctx, "select lock.exclusive($1)", "customer:"+order.Customer)
	if err != nil {
		return err
	}
	_, err = tx.NamedExecContext(ctx, "insert into orders values (:id, :customer)", order)
	if err != nil {
		return err
	}
	var created bool
	err = tx.GetContext(ctx, &created, "select lock.create_task($1, 'mail', payload => $2)",
		order.ID, mail)
	if err != nil {
		return err
	} else if !created {
		return fmt.Errorf("the queue has a task %s", order.ID)
	}
	var requestID int64
	err = tx.GetContext(ctx, &requestID,
		"select lock.enqueue('update', $1, queue_id => 'bills')", order.Customer)
	if err != nil {
		return err
	}
	return tx.Commit()
}

func TakeGorm(ctx context.Context, conn *gorm.DB, order Order, mail string) error {
	return conn.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		err := tx.Exec("select lock.exclusive(?)", "customer:"+order.Customer).Error
		if err != nil {
			return err
		}
		if err := tx.Create(&order).Error; err != nil {
			return err
		}
		var created bool
		err = tx.Raw("select lock.create_task(?, 'mail', payload => ?)", order.ID, mail).
			Scan(&created).Error
		if err != nil {
			return err
		}
		return tx.Exec("select lock.enqueue('update', ?, queue_id => 'bills')",
			order.Customer).Error
	})
}

func TakeBun(ctx context.Context, conn *bun.DB, order Order, mail string) error {
	return conn.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "select lock.exclusive(?)", "customer:"+order.Customer)
		if err != nil {
			return err
		}
		if _, err := tx.NewInsert().Model(&order).Exec(ctx); err != nil {
			return err
		}
		var created bool
		err = tx.NewRaw("select lock.create_task(?, 'mail', payload => ?)", order.ID, mail).
			Scan(ctx, &created)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "select lock.enqueue('update', ?, queue_id => 'bills')",
			order.Customer)
		return err
	})
}

func TakeEnt(ctx context.Context, driver *entsql.Driver, order Order, mail string) error {
	begun, err := driver.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer begun.Rollback()
	tx := begun.(*entsql.Tx) // the generated *ent.Tx has ExecContext, too
	_, err = tx.ExecContext(ctx, "select lock.exclusive($1)", "customer:"+order.Customer)
	if err != nil {
		return err
	}
	insert, args := entsql.Dialect(dialect.Postgres).Insert("orders").
		Columns("id", "customer").Values(order.ID, order.Customer).Query()
	if _, err := tx.ExecContext(ctx, insert, args...); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "select lock.create_task($1, 'mail', payload => $2)",
		order.ID, mail)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "select lock.enqueue('update', $1, queue_id => 'bills')",
		order.Customer)
	if err != nil {
		return err
	}
	return tx.Commit()
}

type Mail struct {
	To string `json:"to"`
}

func Work(ctx context.Context, dsn string, send func(ctx context.Context, to string) error) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	mail := locks.Queue[Mail]{Name: "mail"}
	return mail.Work(ctx, pool, func(ctx context.Context, task locks.Task[Mail]) error {
		return send(ctx, task.Payload.To)
	}, nil)
}
