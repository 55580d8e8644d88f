module github.com/seed4787c507/locks/cli

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/pressly/goose/v3 v3.29.0
	github.com/seed4787c507/locks v0.0.0
	github.com/seed4787c507/locks/console v0.0.0-00010101000000-000000000000
	github.com/seed4787c507/locks/lockstest v0.0.0-00010101000000-000000000000
	github.com/spf13/cobra v1.10.1
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/mfridman/interpolate v0.0.2 // indirect
	github.com/sethvargo/go-retry v0.5.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace (
	github.com/seed4787c507/locks => ../
	github.com/seed4787c507/locks/console => ../console
	github.com/seed4787c507/locks/lockstest => ../lockstest
)
