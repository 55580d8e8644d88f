package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"go.yaml.in/yaml/v3"

	"github.com/seed4787c507/locks/db"
)

// A collector is what sql_exporter reads from ops/locks.collector.yml. Fields that are not here are refused, as it refuses what it does not know.
type collector struct {
	Name    string `yaml:"collector_name"`
	Metrics []struct {
		Name       string   `yaml:"metric_name"`
		Type       string   `yaml:"type"`
		Help       string   `yaml:"help"`
		KeyLabels  []string `yaml:"key_labels"`
		ValueLabel string   `yaml:"value_label"`
		Values     []string `yaml:"values"`
		Query      string   `yaml:"query"`
		QueryRef   string   `yaml:"query_ref"`
	} `yaml:"metrics"`
	Queries []struct {
		Name  string `yaml:"query_name"`
		Query string `yaml:"query"`
	} `yaml:"queries"`
}

func opsFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "ops", name))
	must(t, err)
	return text
}

func readYAML(t *testing.T, text []byte, into any) {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	must(t, decoder.Decode(into))
}

func opsCollector(t *testing.T) (c collector) {
	t.Helper()
	readYAML(t, opsFile(t, "locks.collector.yml"), &c)
	return c
}

// queries are the texts of a collector's queries by what runs them: a metric's own by the metric's name.
func (c collector) queries() map[string]string {
	texts := map[string]string{}
	for _, query := range c.Queries {
		texts[query.Name] = query.Query
	}
	for _, metric := range c.Metrics {
		if metric.Query != "" {
			texts[metric.Name] = metric.Query
		}
	}
	return texts
}

// scrape runs every query as a session, and returns the samples as Prometheus writes them, and what is wrong with the collector.
func (c collector) scrape(s *session) (samples map[string]float64, wrong []string) {
	s.t.Helper()
	samples = map[string]float64{}
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	texts, used, names := c.queries(), map[string]bool{}, map[string]bool{}
	for _, metric := range c.Metrics {
		query := metric.QueryRef
		if metric.Query != "" {
			query = metric.Name
		}
		text := texts[query]
		used[query] = true
		switch {
		case !regexp.MustCompile(`^locks_[a-z_]+[a-z]$`).MatchString(metric.Name) || names[metric.Name]:
			complain("%s: bad name, or twice", metric.Name)
		case metric.Type != "gauge" && metric.Type != "counter", strings.HasSuffix(metric.Name, "_total") != (metric.Type == "counter"):
			complain("%s: type %q", metric.Name, metric.Type)
		case metric.Help == "" || len(metric.Values) == 0 || (len(metric.Values) > 1) != (metric.ValueLabel != ""):
			complain("%s: help, values or value_label is missing", metric.Name)
		case (metric.Query == "") == (metric.QueryRef == "") || text == "":
			complain("%s: one query, please", metric.Name)
			continue
		}
		names[metric.Name] = true
		rows, _ := s.conn.Query(ctx, text)
		fields := rows.FieldDescriptions()
		types := map[string]uint32{}
		for _, field := range fields {
			types[field.Name] = field.DataTypeOID
		}
		for _, column := range metric.Values {
			if types[column] != pgtype.Float8OID {
				complain("%s: %s is of type %d", metric.Name, column, types[column])
			}
		}
		for _, column := range metric.KeyLabels {
			if types[column] != pgtype.TextOID {
				complain("%s: label %s is of type %d", metric.Name, column, types[column])
			}
		}
		all, err := pgx.CollectRows(rows, pgx.RowToMap)
		if err != nil {
			complain("%s: %v", metric.Name, err)
			continue
		}
		for _, row := range all {
			var labels []string
			for _, column := range metric.KeyLabels {
				labels = append(labels, fmt.Sprintf("%s=%v", column, row[column]))
			}
			for _, column := range metric.Values {
				sample := append(slices.Clone(labels), metric.ValueLabel+"="+column)
				if metric.ValueLabel == "" {
					sample = labels
				}
				name := metric.Name + strings.TrimSuffix("{"+strings.Join(sample, ",")+"}", "{}")
				if _, there := samples[name]; there {
					complain("%s twice", name)
				}
				if value, ok := row[column].(float64); ok {
					samples[name] = value
				}
			}
		}
	}
	for name := range texts {
		if !used[name] {
			complain("query %s is in no metric", name)
		}
	}
	return samples, wrong
}

// opsLoad fills a database with something of every kind. All names have the word hush in them.
func opsLoad(t *testing.T, e *env, n int) {
	t.Helper()
	super := e.sessionAs(t, e.super)
	if !target.yugabyte { // nor may an automatic vacuum change what is measured
		super.exec("alter table lock.task set (autovacuum_enabled = off); alter table lock.request set (autovacuum_enabled = off)")
	}
	super.exec(`insert into lock.task (queue_id, id, status, retries_left, deadline, available_at, message, owner)
		select 'hush ' || k % 3, 'hush ' || k || s, s::lock.task_status, case k % 50 when 0 then 0 end,
			case when s = 'in_progress' and k % 100 <> 2 then clock_timestamp() + case k % 100 when 1 then interval '-1 hour' else interval '1 hour' end end,
			clock_timestamp() + case k % 10 when 2 then interval '1 day' else interval '-1 hour' end - k * interval '1 ms', 'hush', 'hush'
		from generate_series(1, $1 / 4) as k, unnest('{new,failed,done,in_progress}'::text[]) as s`, n)
	super.exec(`insert into lock.request (queue_id, entity_id, request_type, request_status, created_at, settled_at, available_at, message)
		select 'hush ' || k % 2, 'hush ' || k, 'update', case when k > $1 * 4 / 5 then 'new' when k % 1000 = 1 then 'error' else 'complete' end::lock.request_status,
			clock_timestamp() - interval '1 hour', case when k <= $1 * 4 / 5 then clock_timestamp() - interval '1 minute' end,
			case when k > $1 * 4 / 5 and k % 10 = 0 then clock_timestamp() + interval '1 day' end, 'hush'
		from generate_series(1, $1) as k`, n)
	super.exec("select lock.acquire_mutex('hush', 'hush'), lock.create_mutex('hush free')")
	super.exec("select lock.take('hush', 1, '1 day'), lock.take('hush rest', 2, '1 day')")
	super.exec("update lock.mutex set acquired_at = acquired_at - interval '1 hour' where acquired")
	super.exec("select lock.acquire_lease('hush', 'hush', '1 hour'), lock.acquire_lease('hush 2', 'hush', '1 hour')")
	super.exec("update lock.lease set renewed_at = renewed_at - interval '40 minutes', expires_at = expires_at - interval '40 minutes' where name = 'hush 2'")
	super.exec("select lock.pause_queue('request', 'hush empty', 'hush')")
	super.exec("vacuum analyze lock.task, lock.request")
}

func TestQueueSizes(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		s := e.session(t)
		answers(s, 0, "select count(*)::integer from lock.queue_sizes()")
		opsLoad(t, e, 2000)
		const compare = `select coalesce(string_agg(difference::text, E'\n'), '') from (
			(select * from lock.queue_sizes(100000) except select * from lock.queue_depth) union all
			(select * from lock.queue_depth except select * from lock.queue_sizes(100000))) as difference`
		answers(s, 6, "select count(*)::integer from lock.queue_sizes()")
		answers(s, "", compare)
		// What is done, and what ended in error long ago, makes no line.
		s.exec("select lock.create_task('done', 'only done', status => 'done'), lock.create_task('for ever', 'runs', timeout => null)")
		s.exec("select lock.capture(1, 'runs')")
		answers(s, 1, "select count(*)::integer from lock.queue_sizes() where queue_id in ('only done', 'runs')")
		answers(s, "1 1", "select concat(running, ' ', endless) from lock.queue_depth where queue_id = 'runs'")
		answers(s, "", compare)
		// Every count ends at max, and so does the number of queues, by name.
		answers(s, "5 5 5 2 5, 5 0 - - 2", `select string_agg(concat_ws(' ', ready, delayed, coalesce(running::text, '-'), coalesce(overdue::text, '-'), dead), ', ' order by kind desc)
			from lock.queue_sizes(5) where queue_id = 'hush 1'`)
		answers(s, "hush 0", "select string_agg(distinct queue_id, ' ') from lock.queue_sizes(1) where paused_since is null")
		for bad, want := range map[string]string{"null": "22004", "0": "22023", "-1": "22023"} {
			if pg := s.fails(want, "select lock.queue_sizes("+bad+")"); pg.Hint == "" {
				t.Errorf("%s: no hint", bad)
			}
		}
		sizes, err := db.New(e.pool).QueueSizes(ctx, 3)
		if err != nil || len(sizes) == 0 || sizes[0].Ready > 3 {
			t.Errorf("%v, %v", sizes, err)
		}
		mutate(t, e, "task_queues", "task.deadline is null", "task.queue_id is null")
		if get[string](s, compare) == "" {
			t.Error("the comparison does not see a queue that is skipped")
		}
	})
}

func TestCollector(t *testing.T) {
	t.Parallel()
	c := opsCollector(t)
	t.Run("every query says what its metrics are", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "pg_locks is another there")
		e := open(t, advisory)
		s := e.session(t)
		empty, wrong := c.scrape(s)
		if len(wrong) > 0 {
			t.Fatal(strings.Join(wrong, "\n"))
		}
		opsLoad(t, e, 2000)
		s.exec("select lock.create_tasks('{k1,k2,k3}', 'keys', keys => '{k,k,k}')")
		holder, waiter := e.session(t), e.session(t)
		holder.exec("begin")
		holder.exec("select lock.exclusive('hush'), lock.exclusive('hush 2')")
		waiting := waiter.start("select lock.exclusive('hush')").blocked()
		full, wrong := c.scrape(s)
		holder.exec("commit")
		waiting.ends()
		if len(wrong) > 0 {
			t.Fatal(strings.Join(wrong, "\n"))
		}
		if !maps.EqualFunc(empty, full, func(float64, float64) bool { return true }) {
			t.Errorf("other samples when empty: %v, and full: %v", empty, full)
		}
		queue := func(kind, column string) float64 {
			return get[float64](s, "select sum("+column+")::float8 from lock.queue_depth where kind = $1", kind)
		}
		want := map[string][2]float64{ // empty, full
			"locks_keys_held": {0, 2}, "locks_waiting_sessions": {0, 1}, "locks_mutexes_acquired": {0, 1}, "locks_leases_held": {0, 2}, "locks_rate_limits_empty": {0, 1}, "locks_leases_late": {0, 1},
			"locks_queues_paused{kind=task}": {0, 0}, "locks_queues_paused{kind=request}": {0, 1},
		}
		for _, state := range []string{"ready", "delayed", "dead", "waiting", "running", "overdue", "endless"} {
			want["locks_queue_entries{kind=task,state="+state+"}"] = [2]float64{0, queue("task", state)}
			if state != "waiting" && state != "running" && state != "overdue" && state != "endless" { // there is no telling, of requests
				want["locks_queue_entries{kind=request,state="+state+"}"] = [2]float64{0, queue("request", state)}
			}
		}
		for name, values := range want {
			if got := [2]float64{empty[name], full[name]}; got != values || values[1] == 0 && !strings.Contains(name, "paused{kind=task") {
				t.Errorf("%s: got %v, want %v", name, got, values)
			}
		}
		if room := get[float64](s, "select (current_setting('max_locks_per_transaction')::int * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int))::float8"); full["locks_lock_table_room"] != room {
			t.Errorf("room for %v, want %v", full["locks_lock_table_room"], room)
		}
		// What depends on the clock, or on who else is at work.
		for name, bounds := range map[string][2]float64{
			"locks_oldest_wait_seconds": {1e-6, 600}, "locks_lock_table_entries": {3, 1e6}, "locks_mutex_oldest_seconds": {3600, 4200},
			"locks_queue_oldest_ready_seconds{kind=task}": {3600, 4200}, "locks_queue_oldest_ready_seconds{kind=request}": {3600, 4200}, "locks_table_bytes{table=task}": {1e5, 1e8},
		} {
			if got := full[name]; got < bounds[0] || got > bounds[1] {
				t.Errorf("%s: got %v, want %v to %v", name, got, bounds[0], bounds[1])
			}
		}
		for name := range full {
			metric, _, _ := strings.Cut(name, "{")
			_, exact := want[name]
			if strings.Contains(name, "hush") {
				t.Errorf("%s: a name is a label", name)
			}
			if !exact && !slices.Contains([]string{"locks_oldest_wait_seconds", "locks_lock_table_entries", "locks_lock_table_room", "locks_mutex_oldest_seconds", "locks_queue_oldest_ready_seconds", "locks_table_bytes"}, metric) {
				t.Errorf("%s is compared with nothing", name)
			}
		}
	})
	t.Run("a monitor may ask it all", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			role := "monitor_" + e.pool.Config().ConnConfig.Database
			admin(t, e, "create role "+role+" login")
			admin(t, e, "select lock.grant_monitor_to('"+role+"')")
			t.Cleanup(func() { admin(t, e, "drop owned by "+role+"; drop role "+role) })
			if _, wrong := c.scrape(e.sessionAs(t, as(target.url, role, e.pool.Config().ConnConfig.Database))); len(wrong) > 0 {
				t.Error(strings.Join(wrong, "\n"))
			}
		})
	})
	t.Run("the checker catches mistakes", func(t *testing.T) {
		t.Parallel()
		s := open(t, engines()[0]).session(t)
		broken := opsCollector(t)
		broken.Metrics[0].Query = "select count(*) as held from pg_class"
		broken.Metrics[1].Values = []string{"session"}
		broken.Metrics[3].QueryRef, broken.Metrics[4].QueryRef = "waits", "waits"
		broken.Metrics[5].Name = "locks_keys_held"
		broken.Metrics[11].KeyLabels = nil
		_, wrong := broken.scrape(s)
		for _, want := range []string{"held is of type 20", "session is of type 0", "query lock_table is in no metric", "locks_keys_held: bad name", "locks_queues_paused twice"} {
			if !strings.Contains(strings.Join(wrong, "\n"), want) {
				t.Errorf("not seen: %s in %q", want, wrong)
			}
		}
	})
	t.Run("a query costs the same however long the queues are", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "explain is another there")
		const most = 4500 // some 200 when vacuum has just been there, 3,200 when it has not, and 4,100 with five times as much
		e := open(t, advisory)
		opsLoad(t, e, 200000)
		s := e.session(t)
		for name, text := range c.queries() {
			n := buffers(s, text)
			t.Logf("%s: %d buffers", name, n)
			if n > most {
				t.Errorf("%s: %d buffers", name, n)
			}
		}
		sound := buffers(s, c.queries()["queues"])
		for _, worse := range [][2]string{{"limit queue_sizes.max", "limit 1000 * queue_sizes.max"}, {"order by request.request_id + 0", "order by request.request_id"}} {
			mutate(t, e, "queue_sizes", worse[0], worse[1])
			n := buffers(e.session(t), c.queries()["queues"])
			t.Logf("with %q: %d buffers", worse[1], n)
			if n < 2*sound {
				t.Errorf("with %q it costs %d buffers, which is not noticed", worse[1], n)
			}
			mutate(t, e, "queue_sizes", worse[1], worse[0])
		}
	})
}

// names of metrics in an expression of Prometheus.
var opsMetric = regexp.MustCompile(`\blocks_[a-z_]+`)

func (c collector) names() (names []string) {
	for _, metric := range c.Metrics {
		names = append(names, metric.Name)
	}
	slices.Sort(names)
	return names
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	known := opsCollector(t).names()
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      map[string]string
			}
		}
	}
	readYAML(t, opsFile(t, "alerts.yml"), &rules)
	var tests struct {
		Tests []struct {
			Alerts []struct {
				Name string `yaml:"alertname"`
				Exp  []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	must(t, yaml.Unmarshal(opsFile(t, "alerts_test.yml"), &tests))
	raised, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, alert := range test.Alerts {
			if len(alert.Exp) > 0 {
				raised[alert.Name] = true
			} else {
				silent[alert.Name] = true
			}
		}
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			used := opsMetric.FindAllString(rule.Expr, -1)
			if len(used) == 0 || rule.For == "" || !slices.Contains([]string{"warning", "critical"}, rule.Labels["severity"]) || rule.Annotations["summary"] == "" {
				t.Errorf("%s lacks a part", rule.Alert)
			}
			for _, name := range used {
				if !slices.Contains(known, name) {
					t.Errorf("%s: nobody collects %s", rule.Alert, name)
				}
			}
			if !raised[rule.Alert] || !silent[rule.Alert] {
				t.Errorf("%s: tested as raised: %v, as silent: %v", rule.Alert, raised[rule.Alert], silent[rule.Alert])
			}
			page, anchor, _ := strings.Cut(rule.Annotations["runbook"], "#")
			text, err := os.ReadFile(filepath.Join(root(t), page))
			if err != nil || !slices.Contains(anchors(string(text)), anchor) {
				t.Errorf("%s: there is no %s (%v)", rule.Alert, rule.Annotations["runbook"], err)
			}
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("the rules were not run: promtool is not installed (Debian's package prometheus)")
	}
	run := func(dir string, args ...string) ([]byte, error) {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = dir
		return cmd.CombinedOutput()
	}
	dir := filepath.Join(root(t), "ops")
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		if out, err := run(dir, args...); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	// Each rule with another threshold or pause fails its test.
	dir = t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "alerts_test.yml"), opsFile(t, "alerts_test.yml"), 0o644))
	for _, change := range [][2]string{{"> 60\n", "> 600\n"}, {"0.8 *", "0.7 *"}, {"> 300\n", "> 200\n"}, {"for: 1h", "for: 1m"}, {`state="dead"`, `state="ready"`}, {"> 86400", "> 86399"}, {"10e9", "9e9"}} {
		text := strings.Replace(string(opsFile(t, "alerts.yml")), change[0], change[1], 1)
		must(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), []byte(text), 0o644))
		if out, err := run(dir, "test", "rules", "alerts_test.yml"); err == nil {
			t.Errorf("not noticed: %q\n%s", change, out)
		}
	}
}

// anchors are what GitHub calls a page's headings.
func anchors(page string) (names []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	type source struct{ Type, UID string }
	var board struct {
		Title, UID string
		Panels     []struct {
			ID                 int
			Title, Description string
			GridPos            struct{ X, Y, W, H int }
			Datasource         source
			Targets            []struct {
				RefID, Expr, LegendFormat string
				Datasource                source
			}
		}
	}
	must(t, json.Unmarshal(opsFile(t, "dashboard.json"), &board))
	labels, used, taken := map[string][]string{}, map[string]bool{}, map[[2]int]string{}
	for _, metric := range opsCollector(t).Metrics {
		labels[metric.Name] = append(slices.Clone(metric.KeyLabels), metric.ValueLabel, "job")
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			name := opsMetric.FindString(target.Expr)
			used[name] = true
			asked := regexp.MustCompile(`([a-z_]+)=~?"|\{\{([a-z_]+)\}\}`).FindAllStringSubmatch(target.Expr+target.LegendFormat, -1)
			for _, label := range asked {
				if !slices.Contains(labels[name], label[1]+label[2]) {
					t.Errorf("%s: %s has no label %q", panel.Title, name, label[1]+label[2])
				}
			}
			if target.Datasource != panel.Datasource || target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: a data source of its own", panel.Title)
			}
		}
		if panel.Title == "" || panel.Description == "" || len(panel.Targets) == 0 {
			t.Errorf("panel %d lacks a part", panel.ID)
		}
		at := panel.GridPos
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s is where %q is, or beyond the edge", panel.Title, other)
				}
				taken[[2]int{x, y}] = panel.Title
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(used)), opsCollector(t).names(); !slices.Equal(got, want) {
		t.Errorf("the dashboard shows\n%v, and collected are\n%v", got, want)
	}
}

// TestExporter runs the collector in the exporter that it is written for, where that is installed.
func TestExporter(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "pg_locks is another there")
	program, err := exec.LookPath("sql_exporter")
	if err != nil {
		t.Skip("the collector was not run by the exporter itself: sql_exporter (github.com/burningalchemist/sql_exporter) is not in PATH")
	}
	e := open(t, advisory)
	opsLoad(t, e, 2000)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	must(t, listener.Close())
	config := filepath.Join(t.TempDir(), "sql_exporter.yml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "target:\n  data_source_name: %q\n  collectors: [locks]\ncollector_files: [%q]\n",
		e.url, filepath.Join(root(t), "ops", "locks.collector.yml")), 0o644))
	cmd := exec.Command(program, "-config.file", config, "-web.listen-address", address)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-exited
	})
	var page string
	eventually(t, "the exporter answers", func() bool {
		response, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			select {
			case err := <-exited:
				exited <- err
				t.Fatalf("the exporter ended: %v\n%s", err, log.String())
			default:
			}
			return false
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		must(t, err)
		page = string(text)
		return true
	})
	for _, metric := range opsCollector(t).Metrics {
		if !regexp.MustCompile(`(?m)^` + metric.Name + `(\{.*\})? [0-9.e+-]+$`).MatchString(page) {
			t.Errorf("%s is missing", metric.Name)
		}
	}
	for _, line := range []string{"locks_mutexes_acquired 1", `locks_queue_entries{kind="request",state="dead"} 2`, `locks_queues_paused{kind="request"} 1`} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}
