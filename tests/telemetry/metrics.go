// Package telemetry measures and traces the workers of a program. Copy it.
package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed4787c507/locks"
)

// Metrics are of all workers of a process. NewMetrics registers them.
type Metrics struct {
	settled          *prometheus.CounterVec
	waiting, running *prometheus.HistogramVec
}

func NewMetrics(registry prometheus.Registerer) *Metrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 4, 12), // to 70 minutes
		}, labels)
	}
	m := &Metrics{
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "worker_settled_total", Help: "Tasks and requests, by what became of them.",
		}, []string{"queue", "outcome"}),
		waiting: histogram("worker_waiting_seconds",
			"From when it could be had to its capture.", "queue"),
		running: histogram("worker_running_seconds",
			"How long its handler ran.", "queue", "outcome"),
	}
	registry.MustRegister(m.settled, m.waiting, m.running)
	return m
}

// Task is a TaskOptions.Settled.
func (m *Metrics) Task(_ context.Context, result locks.TaskResult) {
	m.note(result.Task.QueueID, 1, result.Result)
	if task := result.Task; !result.Began.IsZero() {
		// Both are the database's clock.
		m.waiting.WithLabelValues(task.QueueID).
			Observe(task.ChangedAt.Sub(task.AvailableAt).Seconds())
	}
}

// Requests is a RequestOptions.Settled.
func (m *Metrics) Requests(_ context.Context, result locks.RequestResult) {
	queue := result.Batch[0].QueueID
	m.note(queue, len(result.Batch), result.Result)
	for _, request := range result.Batch {
		since := request.CreatedAt
		if request.AvailableAt != nil { // it was put back
			since = *request.AvailableAt
		}
		if request.StartedAt != nil {
			m.waiting.WithLabelValues(queue).Observe(request.StartedAt.Sub(since).Seconds())
		}
	}
}

func (m *Metrics) note(queue string, pieces int, result locks.Result) {
	outcome := string(result.Outcome)
	m.settled.WithLabelValues(queue, outcome).Add(float64(pieces))
	if !result.Began.IsZero() { // its handler was called
		m.running.WithLabelValues(queue, outcome).
			Observe(result.Ended.Sub(result.Began).Seconds())
	}
}
