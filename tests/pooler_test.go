package tests

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// runPgbouncer starts a pgbouncer before a server, with pooling by transaction and more settings if given. It may not answer at once.
func runPgbouncer(database string, settings ...string) (host string, stop func(), err error) {
	program, err := pgbouncer()
	if err != nil {
		return "", nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	host = free.Addr().String()
	_, port, _ := net.SplitHostPort(host)
	free.Close()
	dir, err := os.MkdirTemp("", "locks-bouncer-")
	if err != nil {
		return "", nil, err
	}
	text := fmt.Sprintf(`[databases]
* = %s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
%s
`, database, port, strings.Join(settings, "\n"))
	cmd := exec.Command(program, "-q", dir+"/ini")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = asNobody() // It refuses to run as root.
	}
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(dir+"/ini", []byte(text), 0o644))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, err
	}
	return host, func() {
		cmd.Process.Kill()
		cmd.Wait()
		os.RemoveAll(dir)
	}, nil
}

// pgbouncer is the program, which is not in everybody's PATH.
func pgbouncer() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("pgbouncer is not installed")
}

// startPgbouncer starts one for a test, where everybody is the user of address, and returns the database's address there.
// It skips the test where there is no pgbouncer.
func startPgbouncer(t *testing.T, address string, settings ...string) string {
	t.Helper()
	if _, err := pgbouncer(); err != nil {
		t.Skip(err)
	}
	u, err := url.Parse(address)
	must(t, err)
	host, stop, err := runPgbouncer(fmt.Sprintf("host=%s port=%s user=%s", u.Hostname(), u.Port(), u.User.Username()), append(settings, "auth_type = any")...)
	must(t, err)
	t.Cleanup(stop)
	return through(host, address, "exec")
}

// through is an address behind a pooler, with what pgx needs there.
func through(host, address, mode string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	u.Host = host
	query := u.Query()
	query.Set("sslmode", "disable")
	query.Set("default_query_exec_mode", mode)
	u.RawQuery = query.Encode()
	return u.String()
}

// poolEverybody puts a pgbouncer between the tests' ordinary roles and the server. Its connections go round, so that what one client
// leaves behind in a session meets another.
func poolEverybody() (stop func(), err error) {
	u, err := url.Parse(target.url)
	if err != nil {
		return nil, err
	}
	target.pooler, stop, err = runPgbouncer(fmt.Sprintf("host=%s port=%s auth_user=%s", u.Hostname(), u.Port(), u.User.Username()),
		"auth_type = trust", "auth_file = /dev/null", "max_client_conn = 3000", "default_pool_size = 80", "server_round_robin = 1", "server_idle_timeout = 5")
	if err != nil {
		return nil, err
	}
	for range 500 {
		time.Sleep(20 * time.Millisecond) // it may not listen yet
		var conn *pgx.Conn
		if conn, err = pgx.Connect(ctx, through(target.pooler, target.url, "exec")); err == nil {
			return stop, conn.Close(ctx)
		}
	}
	stop()
	return nil, err
}

// pooled is the address of the ordinary role's database for a test: behind the pooler, if there is one, but for those that
// are in direct.
func pooled(t testing.TB, address string) string {
	if target.pooler == "" || directly(t.Name()) != "" {
		return address
	}
	// exec does as well, but encodes no [16]byte as a uuid.
	return through(target.pooler, address, "cache_describe")
}

func directly(name string) string {
	for {
		if why := direct[name]; why != "" {
			return why
		}
		n := strings.LastIndex(name, "/")
		if n < 0 {
			return ""
		}
		name = name[:n]
	}
}

// direct are the tests, or parts of tests, whose ordinary roles do not go through the pooler, and why. Superusers and the
// schema's owner never do.
var direct = map[string]string{
	"TestActivity":          backEnds,
	"TestBlocked":           backEnds,
	"TestBlockedChecker":    backEnds,
	"TestWho":               backEnds,
	"TestKeyGo":             modes,
	"TestKeyIsLockedOnce":   backEnds,
	"TestKeyRefusedWaits":   backEnds,
	"TestKeySetsInOneOrder": backEnds,
	"TestKeyTryAll/advisory/waits_and_gets_them_all": backEnds,
	"TestKeyTryAll/row/waits_and_gets_them_all":      backEnds,
	"TestCheck/PostgreSQL":                           settings,
	"TestLanguages":                                  programs,
	"TestRecipeCronOnce":                             programs,
	"TestRecipeSeveralLocks":                         programs,
	"TestRequestEntity":                              settings,
	"TestBlockedRows":                                backEnds,
	"TestBlockedYugabyteBranch":                      backEnds,
	"TestRunbooks":                                   backEnds,
	"TestHammer":                                     backEnds,
	"TestKeyYugabyteBranchUnderTheHammer":            backEnds,
	"TestKeyBehindPgbouncer":                         "it has a pooler of its own",
	"TestKeyNamesBehindPgbouncer":                    "it has a pooler of its own",
	"TestKeyNamesOfTheAdvisoryEngine":                "it looks at what a session's settings are",
	"TestRetryFromPsql":                              programs,
	"TestSpec":                                       programs,
	"TestSpecCatchesTheRecipe":                       programs,
	"TestWorkers":                                    programs,
	"TestDemo":                                       programs,
	"TestExamples":                                   programs,
	"TestLeaseWait":                                  listening,
	"TestLeasePermits/are_counted_no_earlier_than_the_gate_is_locked,_guarded_false": temporary,
	"TestLeasePermits/are_counted_no_earlier_than_the_gate_is_locked,_guarded_true":  temporary,
	"TestRequestCheckers":       backEnds,
	"TestWithLeaseWait":         listening,
	"TestQueueAwait":            listening,
	"TestRequestCancel":         listening,
	"TestRequestWorkBusyEntity": listening,
	"TestRequestWorkLife":       listening,
	"TestTaskBlackHole":         listening,
	"TestTaskWork":              listening,
	"TestTaskWorkFaults":        listening,
	"TestWakeProtocol":          listening,
	"TestWakeRounds":            listening,
	"TestWakeWatch":             listening,
	"TestQueuePause/two_who_pause_or_resume_at_once":                    temporary,
	"TestTaskCapture/the_published_query_gives_one_task_to_two_callers": temporary,
	"TestTaskFencing/refuses_a_settlement_that_waited_for_the_takeover": temporary,
	"TestRequestWorkOutcomes":                                           "it compares an error's text, which differs for a statement that is prepared",
	"TestThrottlePermitsBoundary":                                       "it measures the microseconds between two calls",
	"FuzzFunctions":                                                     "it looks at what a session is left with",
	"TestClientLimits":                                                  "its limits are settings of sessions",
}

const (
	backEnds  = "it names back ends, and ends them"
	modes     = "it goes through all of pgx's modes, of which some prepare statements, and changes settings of sessions"
	listening = "LISTEN: it waits until workers have heard"
	programs  = "a program of its own takes the address, and knows no parameter of pgx"
	settings  = "its gates are settings of sessions"
	temporary = "temporary tables"
)

const behindPooler = 1 << 31

var applications atomic.Uint32

func isPooled(address string) bool {
	u, err := url.Parse(address)
	return err == nil && target.pooler != "" && u.Host == target.pooler
}

// Whoever is in direct is a test.
func TestPoolerDirect(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	for name := range direct {
		name, _, _ = strings.Cut(name, "/")
		if !slices.Contains(names, name) {
			t.Errorf("%s is no test", name)
		}
	}
}
