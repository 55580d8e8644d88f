package locks_test

import (
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A program that has one pgx.Conn and no pool begins transactions on that. What is a transaction of
// its own on a pool is one here, too, but is not repeated after 40001.
func Example_conn() {
	conn, err := pgx.Connect(ctx, pool.Config().ConnString())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close(ctx)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		got, err := db.New(tx).TryExclusiveName(ctx, "customer:42", 0)
		fmt.Println("locked:", got)
		return err
	})
	fmt.Println(err)
	acquired, err := locks.NewDurableMutex(conn, "host 7").Acquire(ctx, "weekly import")
	fmt.Println("acquired:", acquired, err)
	// Output:
	// locked: true
	// <nil>
	// acquired: true <nil>
}

// A program that uses database/sql with pgx's driver calls the functions in its own transactions. A
// parameter has a cast, because a key by number and one by name are two functions. Made by
// stdlib.OpenDBFromPool, a *sql.DB shares its connections with the pool that the closures take.
func Example_databaseSQL() {
	sqlDB := stdlib.OpenDBFromPool(pool)
	defer sqlDB.Close()
	tx, err := sqlDB.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback()
	var got bool
	const lock = "select lock.try_exclusive($1::text, '2 seconds')"
	err = tx.QueryRowContext(ctx, lock, "customer:42").Scan(&got)
	if err != nil || !got {
		fmt.Println("not now:", err)
		return
	}
	_, err = tx.ExecContext(ctx, "update account set balance = balance + 1 where id = 2")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tx.Commit())
	// Output: <nil>
}

// With database/sql, the driver's connection gives the pgx.Tx that db.New takes.
func Example_databaseSQLTyped() {
	sqlDB := stdlib.OpenDBFromPool(pool)
	defer sqlDB.Close()
	conn, err := sqlDB.Conn(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	err = conn.Raw(func(driver any) error {
		return pgx.BeginFunc(ctx, driver.(*stdlib.Conn).Conn(), func(tx pgx.Tx) error {
			if err := db.New(tx).ExclusiveName(ctx, "customer:42"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "update account set balance = balance + 1 where id = 2")
			return err
		})
	})
	fmt.Println(err)
	// Output: <nil>
}
