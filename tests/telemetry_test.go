package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/tests/telemetry"
)

// The recipe's metrics, after a task of each outcome that can be had at once.
func TestRecipeMetrics(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	registry := prometheus.NewPedanticRegistry()
	metrics := telemetry.NewMetrics(registry)
	mail := locks.Queue[string]{Name: "mail"}
	for _, id := range []string{"done", "retry", "dead", "snoozed"} {
		_, err := mail.Create(ctx, e.pool, id, id, nil)
		must(t, err)
	}
	e.sessionAs(t, e.super).exec("update lock.task set available_at = available_at - interval '10 minutes' where id = 'dead'")
	results, err := mail.WorkDue(ctx, e.pool, func(_ context.Context, task locks.Task[string]) error {
		return map[string]error{
			"retry": errors.New("later"), "dead": locks.Permanent(errors.New("never")), "snoozed": locks.Snooze(time.Hour),
		}[task.ID]
	})
	must(t, err)
	for _, result := range results {
		metrics.Task(ctx, result)
	}
	if len(results) != 4 {
		t.Errorf("%d results", len(results))
	}
	bills := locks.Entities[string]{Name: "bills"}
	for range 3 {
		_, err := bills.Update(ctx, e.pool, "42", "")
		must(t, err)
	}
	runUntil(t, func(ctx context.Context) error {
		return bills.Work(ctx, e.pool, func(context.Context, pgx.Tx, []locks.Request[string]) error { return nil }, &locks.RequestOptions{Settled: metrics.Requests})
	})
	want := `
		# HELP worker_settled_total Tasks and requests, by what became of them.
		# TYPE worker_settled_total counter
		worker_settled_total{outcome="done",queue="bills"} 3
		worker_settled_total{outcome="dead",queue="mail"} 1
		worker_settled_total{outcome="done",queue="mail"} 1
		worker_settled_total{outcome="retry",queue="mail"} 1
		worker_settled_total{outcome="snoozed",queue="mail"} 1
	`
	eventually(t, "all is counted", func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(want), "worker_settled_total") == nil
	})
	// Four tasks waited, one of them for ten minutes, and three requests; five handlers ran.
	got := map[string]string{}
	families, err := registry.Gather()
	must(t, err)
	for _, family := range families {
		for _, metric := range family.Metric {
			if h := metric.GetHistogram(); h != nil {
				labels := ""
				for _, label := range metric.Label {
					labels += label.GetValue() + " "
				}
				got[family.GetName()] += fmt.Sprint(labels, h.GetSampleCount(), " ", int(h.GetSampleSum())/600, "; ")
			}
		}
	}
	if want := "bills 3 0; mail 4 1; "; got["worker_waiting_seconds"] != want {
		t.Errorf("waiting: %s, want %s", got["worker_waiting_seconds"], want)
	}
	if want := "dead mail 1 0; done bills 1 0; done mail 1 0; retry mail 1 0; snoozed mail 1 0; "; got["worker_running_seconds"] != want {
		t.Errorf("running: %s, want %s", got["worker_running_seconds"], want)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// The recipe's traces: not parallel, since the provider is the process's.
func TestRecipeTraces(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	t.Cleanup(func() { must(t, provider.Shutdown(ctx)) })

	e := open(t, advisory)
	mail := locks.Queue[telemetry.Traced[letter]]{Name: "mail", Tries: 2}
	request, order := provider.Tracer("shop").Start(ctx, "POST /order")
	for _, id := range []string{"fails", "is fine"} {
		created, err := telemetry.Create(request, e.pool, mail, id, letter{To: id}, nil)
		if err != nil || !created {
			t.Fatal(created, err)
		}
	}
	tx, err := e.pool.Begin(ctx)
	must(t, err)
	must(t, tx.Rollback(ctx))
	if _, err := telemetry.Create(request, tx, mail, "never", letter{}, nil); !errors.Is(err, pgx.ErrTxClosed) {
		t.Error(err)
	}
	order.End()
	e.session(t).exec(`select lock.create_task('odd', 'mail', payload => '7')`)
	told := &toldLog{}
	runUntil(t, func(ctx context.Context) error {
		return telemetry.Work(ctx, e.pool, mail, func(ctx context.Context, task locks.Task[telemetry.Traced[letter]]) error {
			_, inner := provider.Tracer("shop").Start(ctx, "smtp")
			inner.End()
			if task.Payload.Body.To == "fails" {
				return errors.New("return to sender")
			}
			return nil
		}, locks.TaskOptions{ShortestPause: time.Millisecond, LongestPause: time.Millisecond, Settled: told.task})
	})
	eventually(t, "all are told of", func() bool {
		return len(told.all("fails")) == 2 && len(told.all("is fine")) == 1 && len(told.all("odd")) == 1
	})
	all := map[string]tracetest.SpanStub{}
	names := map[trace.SpanID]string{}
	for _, span := range exporter.GetSpans() {
		name := span.Name
		for _, label := range span.Attributes {
			switch label.Key {
			case "messaging.message.id", "locks.attempt":
				name += " " + label.Value.String()
			}
		}
		names[span.SpanContext.SpanID()] = name
		all[name] = span
	}
	var got []string
	for name, span := range all {
		if span.Name == "smtp" {
			continue
		}
		line := fmt.Sprintf("%s: %v in %q", name, span.SpanKind, names[span.Parent.SpanID()])
		if trace := order.SpanContext().TraceID(); span.SpanContext.TraceID() != trace {
			line += " elsewhere"
		}
		for _, link := range span.Links {
			line += fmt.Sprintf(" to %q", names[link.SpanContext.SpanID()])
		}
		for _, label := range span.Attributes {
			switch label.Key {
			case "messaging.operation.type", "locks.outcome", "error.type":
				line += " " + label.Value.String()
			}
		}
		if span.Status.Code == codes.Error {
			line += " " + span.Status.Description
		}
		if span.EndTime.Before(span.StartTime) || span.EndTime.IsZero() {
			t.Errorf("%s: from %v to %v", name, span.StartTime, span.EndTime)
		}
		got = append(got, line)
	}
	slices.Sort(got)
	want := []string{
		`POST /order: internal in ""`,
		`create_task mail fails: producer in "POST /order" send`,
		`create_task mail is fine: producer in "POST /order" send`,
		`create_task mail never: producer in "POST /order" send create_task locks: create task "never": tx is closed`,
		`process mail 1 fails: consumer in "create_task mail fails" process retry retry return to sender`,
		`process mail 1 is fine: consumer in "create_task mail is fine" process done`,
		`process mail 2 fails: consumer in "" elsewhere to "create_task mail fails" process dead dead return to sender`,
		`process mail odd: consumer in "" elsewhere process dead dead decode the payload: json: cannot unmarshal number into Go value of type telemetry.Traced[github.com/seed4787c507/locks/tests.letter]`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	inside := 0
	for _, span := range exporter.GetSpans() {
		if span.Name == "smtp" && strings.HasPrefix(names[span.Parent.SpanID()], "process mail ") {
			inside++
		}
	}
	if inside != 3 {
		t.Errorf("%d spans of handlers are inside of theirs", inside)
	}
}
