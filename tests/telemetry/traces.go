package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A Traced payload carries the trace that it belongs to.
type Traced[T any] struct {
	Trace propagation.MapCarrier `json:"trace,omitempty"`
	Body  T                      `json:"body"`
}

func start(ctx context.Context, name, queue, id string, kind trace.SpanKind,
	operation attribute.KeyValue, more ...trace.SpanStartOption,
) (context.Context, trace.Span) {
	return otel.Tracer("locks").Start(ctx, name+" "+queue, append(more,
		trace.WithSpanKind(kind), trace.WithAttributes(
			semconv.MessagingSystemKey.String("locks"),
			semconv.MessagingOperationName(name), operation,
			semconv.MessagingDestinationName(queue), semconv.MessagingMessageID(id),
		))...)
}

// Create is queue.Create with a span. The span's context travels in the payload.
func Create[T any](ctx context.Context, conn db.DBTX, queue locks.Queue[Traced[T]], id string,
	body T, opts *locks.CreateOptions,
) (created bool, err error) {
	ctx, span := start(ctx, "create_task", queue.Name, id, trace.SpanKindProducer,
		semconv.MessagingOperationTypeSend)
	defer span.End()
	payload := Traced[T]{propagation.MapCarrier{}, body}
	otel.GetTextMapPropagator().Inject(ctx, payload.Trace)
	created, err = queue.Create(ctx, conn, id, payload, opts)
	if err != nil {
		fail(span, "create_task", err)
	}
	return created, err
}

// Work is queue.Work with a span for each attempt, from its handler's start to its end. What the
// span says of its outcome is known when that is settled, and so the span is kept until then.
func Work[T any](ctx context.Context, pool *pgxpool.Pool, queue locks.Queue[Traced[T]],
	work func(ctx context.Context, task locks.Task[Traced[T]]) error, opts locks.TaskOptions,
) error {
	type attempt struct {
		task   string
		number int64
	}
	var spans sync.Map // by attempt
	settled := opts.Settled
	opts.Settled = func(ctx context.Context, result locks.TaskResult) {
		task, end := result.Task, result.Ended
		kept, found := spans.LoadAndDelete(attempt{task.ID, task.Attempt})
		span, _ := kept.(trace.Span)
		if !found { // no handler: its worker has died, or its payload is no T
			end = time.Now()
			_, span = start(ctx, "process", queue.Name, task.ID, trace.SpanKindConsumer,
				semconv.MessagingOperationTypeProcess, trace.WithTimestamp(end))
		}
		span.SetAttributes(attribute.String("locks.outcome", string(result.Outcome)))
		if result.Err != nil {
			fail(span, string(result.Outcome), result.Err)
		}
		span.End(trace.WithTimestamp(end))
		if settled != nil {
			settled(ctx, result)
		}
	}
	return queue.Work(ctx, pool, func(ctx context.Context, task locks.Task[Traced[T]]) error {
		more := []trace.SpanStartOption{
			trace.WithAttributes(attribute.Int64("locks.attempt", task.Attempt)),
		}
		created := otel.GetTextMapPropagator().Extract(ctx, task.Payload.Trace)
		if task.Attempt == 1 {
			ctx = created // this span is its child
		} else { // Hours may have passed. It is a trace of its own, with a link.
			more = append(more, trace.WithLinks(trace.LinkFromContext(created)))
		}
		ctx, span := start(ctx, "process", queue.Name, task.ID, trace.SpanKindConsumer,
			semconv.MessagingOperationTypeProcess, more...)
		spans.Store(attempt{task.ID, task.Attempt}, span)
		return work(ctx, task)
	}, &opts)
}

func fail(span trace.Span, kind string, err error) {
	span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}
