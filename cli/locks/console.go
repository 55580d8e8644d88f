package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/seed4787c507/locks/console"
)

// A consoleServer is the console as a program of its own.
type consoleServer struct {
	listen, prefix, users, userHeader, hosts string
	allowActions                             bool
}

func consoleCommand() *cobra.Command {
	c := &consoleServer{}
	cmd := &cobra.Command{
		Use: "console", Short: "Serves the console: who waits for whom, queues, locks, as web pages",
		Long: "Serves the console. LOCKS_CONSOLE_URL is the database's address, for a role that lock.grant_monitor_to made.\n" +
			"With --allow-actions LOCKS_CONSOLE_ACTIONS_URL is another, for a role that lock.grant_operator_to made.",
		Args: arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log.SetFlags(0)
			log.SetPrefix("locks console: ")
			return c.serve(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.listen, "listen", "127.0.0.1:8437", "the address to listen on; one that is not loopback needs --users or --user-header")
	flags.StringVar(&c.prefix, "prefix", "", "the path that a proxy shows the console under, such as /locks")
	flags.StringVar(&c.users, "users", "", "a file with a line name:password for each user, for basic auth; nobody else may read it")
	flags.StringVar(&c.userHeader, "user-header", "", "the header that a proxy in front names the user in, such as X-Forwarded-User; nobody but the proxy may reach --listen")
	flags.StringVar(&c.hosts, "hosts", "", "the names that browsers ask for the console by, separated by commas, such as locks.example; --user-header needs it, and loopback is always one")
	flags.BoolVar(&c.allowActions, "allow-actions", false, "let users act, by LOCKS_CONSOLE_ACTIONS_URL; needs --users or --user-header")
	return cmd
}

func (c *consoleServer) serve(ctx context.Context) error {
	guard, operator, err := c.authentication()
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(c.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if operator == nil && (c.allowActions || !isLoopback(host)) {
		return errors.New("--allow-actions, and a --listen that is not loopback, need to know who asks: set --users or --user-header")
	}
	pool, err := consolePool(ctx, "LOCKS_CONSOLE_URL")
	if err != nil {
		return err
	}
	defer pool.Close()
	options := &console.Options{Prefix: c.prefix, Operator: operator}
	if c.allowActions {
		if options.Actions, err = consolePool(ctx, "LOCKS_CONSOLE_ACTIONS_URL"); err != nil {
			return err
		}
		defer options.Actions.Close()
	}
	listener, err := net.Listen("tcp", c.listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: guard(console.Handler(pool, options)), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	log.Printf("http://%s%s/", listener.Addr(), strings.TrimSuffix(c.prefix, "/"))
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return server.Shutdown(patience)
}

// consolePool makes a pool; that the server answers shows on the pages.
func consolePool(ctx context.Context, variable string) (*pgxpool.Pool, error) {
	address := os.Getenv(variable)
	if address == "" {
		return nil, fmt.Errorf("%s is not set: set it to the address of the database", variable)
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	config.MaxConns = 4
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "locks-console"
	}
	return pgxpool.NewWithConfig(ctx, config)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// authentication is what stands in front of the handler, and what says who asks; nil: nobody is known.
func (c *consoleServer) authentication() (guard func(http.Handler) http.Handler, operator func(*http.Request) string, err error) {
	switch {
	case c.users != "" && c.userHeader != "":
		return nil, nil, errors.New("--users and --user-header are two ways to know who asks: set one")
	case c.users != "":
		passwords, err := readUsers(c.users)
		if err != nil {
			return nil, nil, err
		}
		operator = func(r *http.Request) string {
			name, password, _ := r.BasicAuth()
			wanted, known := passwords[name]
			given := sha256.Sum256([]byte(password))
			if subtle.ConstantTimeCompare(wanted[:], given[:]) != 1 || !known {
				return ""
			}
			return name
		}
	case c.userHeader != "" && c.hosts == "":
		return nil, nil, errors.New("--user-header: set --hosts to the names that the proxy is asked by, so that no other name leads here")
	case c.userHeader != "":
		operator = func(r *http.Request) string {
			if names := r.Header.Values(c.userHeader); len(names) == 1 {
				return strings.TrimSpace(names[0])
			}
			return ""
		}
	default:
		return c.sameHost, nil, nil
	}
	return func(next http.Handler) http.Handler {
		if c.userHeader != "" || c.hosts != "" {
			next = c.sameHost(next)
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if operator(r) == "" {
				if c.users != "" {
					w.Header().Set("WWW-Authenticate", `Basic realm="locks", charset="UTF-8"`)
				}
				http.Error(w, "This console has to know who you are.", http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}, operator, nil
}

// sameHost refuses what comes by a name that somebody else could have pointed here, so that no foreign page reads the console by the
// reader's own browser.
func (c *consoleServer) sameHost(next http.Handler) http.Handler {
	known := strings.FieldsFunc(strings.ToLower(c.hosts), func(c rune) bool { return c == ',' || c == ' ' })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
		if !isLoopback(host) && !slices.Contains(known, host) {
			http.Error(w, "Ask by 127.0.0.1 or localhost, or by a name of --hosts.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func readUsers(name string) (map[string][sha256.Size]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--users: %w", err)
	}
	defer file.Close()
	if about, err := file.Stat(); err != nil {
		return nil, fmt.Errorf("--users: %w", err)
	} else if about.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("--users: others may read %s: chmod 600", name)
	}
	passwords := map[string][sha256.Size]byte{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		user, password, ok := strings.Cut(lines.Text(), ":")
		if !ok || user == "" || password == "" {
			return nil, fmt.Errorf("--users: line %d of %s is not name:password", len(passwords)+1, name)
		}
		passwords[user] = sha256.Sum256([]byte(password))
	}
	if lines.Err() == nil && len(passwords) == 0 {
		return nil, fmt.Errorf("--users: %s is empty", name)
	}
	return passwords, lines.Err()
}
