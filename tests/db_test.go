package tests

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed4787c507/locks/db"
)

// The constants are the enums' values, in their order.
func TestNames(t *testing.T) {
	t.Parallel()
	s := open(t, advisory).session(t)
	for enum, names := range map[string]string{
		"task_status":    fmt.Sprint([]db.TaskStatus{db.TaskNew, db.TaskInProgress, db.TaskDone, db.TaskFailed}),
		"request_type":   fmt.Sprint([]db.RequestType{db.RequestCreate, db.RequestUpdate}),
		"request_status": fmt.Sprint([]db.RequestStatus{db.RequestNew, db.RequestInProgress, db.RequestComplete, db.RequestError}),
	} {
		answers(s, names, "select '[' || array_to_string(enum_range(null::lock."+enum+"), ' ') || ']'")
	}
}

// The zero value of an argument is SQL's default, however pgx sends it.
func TestZeroValues(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	super := e.sessionAs(t, e.super)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			super.exec("truncate lock.task, lock.request, lock.mutex, lock.time_slot, lock.lease cascade")
			setting := "&default_query_exec_mode=" + strings.ReplaceAll(mode.String(), " ", "_")
			q := db.New(openPool(t, e.url+setting, 2))
			operator := db.New(openPool(t, e.owner+setting, 2))
			yes := func(got bool, err error) {
				t.Helper()
				if must(t, err); !got {
					t.Error("false")
				}
			}

			yes(q.CreateTask(ctx, db.CreateTaskParams{ID: "a"}))
			yes(q.CreateTask(ctx, db.CreateTaskParams{
				ID: "b", Timeout: db.Forever, RetriesLeft: 1, AvailableAt: time.Now().Add(-time.Hour),
			}))
			made, err := q.CreateTasks(ctx, db.CreateTasksParams{IDs: []string{"c"}})
			if must(t, err); made != 1 {
				t.Error(made)
			}
			answers(super, "a:default:00:05:00:-:t, b:default:-:1:f, c:default:00:05:00:-:t", `select string_agg(
				concat_ws(':', id, queue_id, coalesce(timeout::text, '-'), coalesce(retries_left::text, '-'),
					available_at > clock_timestamp() - interval '1 minute'), ', ' order by id) from lock.task`)
			listed, err := q.ListTasks(ctx, db.ListTasksParams{})
			if must(t, err); len(listed) != 3 || listed[0].Timeout != nil || *listed[1].Timeout != 5*time.Minute {
				t.Errorf("%+v", listed)
			}
			tasks, err := q.Capture(ctx, db.CaptureParams{Max: 1})
			if must(t, err); len(tasks) != 1 || tasks[0].ID != "b" || tasks[0].Owner != nil || tasks[0].Status != db.TaskInProgress {
				t.Errorf("%+v", tasks)
			}
			yes(q.SetStatus(ctx, db.SetStatusParams{ID: "b", Status: db.TaskFailed}))
			dead, err := operator.DeadLetters(ctx, "", 0)
			if must(t, err); len(dead) != 1 || dead[0].Message != nil {
				t.Errorf("%+v", dead)
			}
			revived, err := operator.RetryTasks(ctx, db.RetryTasksParams{})
			if must(t, err); revived != 1 {
				t.Error(revived)
			}
			if task, err := q.GetTask(ctx, "b", ""); err != nil || *task.RetriesLeft != 1 {
				t.Errorf("%+v, %v", task, err)
			}
			yes(operator.RetryTask(ctx, db.RetryTaskParams{ID: "b"}))
			if task, err := q.GetTask(ctx, "b", ""); err != nil || task.RetriesLeft != nil {
				t.Errorf("%+v, %v", task, err)
			}
			yes(q.SetStatus(ctx, db.SetStatusParams{ID: "a", Status: db.TaskDone}))
			yes(q.SetStatus(ctx, db.SetStatusParams{ID: "c", Status: db.TaskFailed, Dead: true}))
			super.exec("update lock.task set available_at = clock_timestamp() - interval '40 days'")
			cleaned, err := operator.Clean(ctx, 0, 0)
			if must(t, err); !slices.Contains(cleaned, db.Cleaned{Kind: db.KindTask, Removed: 1}) {
				t.Errorf("%+v", cleaned)
			}
			yes(q.CreateTask(ctx, db.CreateTaskParams{ID: "d"}))
			yes(q.SetStatus(ctx, db.SetStatusParams{ID: "d", Status: db.TaskDone}))
			super.exec("update lock.task set available_at = clock_timestamp() - interval '1 hour'")
			purged, err := operator.PurgeTasks(ctx, db.PurgeTasksParams{OlderThan: time.Minute})
			if must(t, err); purged != 1 {
				t.Error(purged)
			}

			yes(q.AcquireMutex(ctx, "m", ""))
			status, err := q.GetMutexStatus(ctx, "m")
			if must(t, err); status.Owner != nil {
				t.Errorf("%+v", status)
			}
			yes(q.ReleaseMutex(ctx, "m", ""))
			yes(q.AcquireTimeSlot(ctx, db.AcquireTimeSlotParams{TaskID: "s", Resolution: time.Hour}))
			slot, err := q.GetTimeSlotStatus(ctx, "s")
			if must(t, err); time.Since(slot.SlotStart.Time) > 2*time.Hour {
				t.Errorf("%+v", slot)
			}
			_, err = q.AcquireLease(ctx, db.AcquireLeaseParams{Name: "l", Owner: "me", TTL: time.Hour})
			must(t, err)
			if _, err = q.AcquireLease(ctx, db.AcquireLeaseParams{Name: "l", Owner: "me", TTL: time.Hour}); err != pgx.ErrNoRows {
				t.Error(err)
			}
			resource := db.CreateThrottledResourceParams{ResourceID: mode.String(), ThrottleInterval: time.Hour}
			yes(q.CreateThrottledResource(ctx, resource))
			throttled, err := q.GetThrottledResourceStatus(ctx, mode.String())
			if must(t, err); throttled.Permits != 1 || throttled.ThrottleInterval != time.Hour || throttled.NextPermitAt != nil {
				t.Errorf("%+v", throttled)
			}

			_, err = q.Enqueue(ctx, db.EnqueueParams{RequestType: db.RequestUpdate, EntityID: "e"})
			must(t, err)
			tx, err := e.pool.Begin(ctx)
			must(t, err)
			defer tx.Rollback(ctx)
			process := pgtype.UUID{Valid: true}
			rand.Read(process.Bytes[:])
			batch, err := db.New(tx).CaptureRequest(ctx, db.CaptureRequestParams{ProcessID: process})
			if must(t, err); len(batch) != 1 || batch[0].RequestStatus != db.RequestInProgress {
				t.Errorf("%+v", batch)
			}
			settled, err := db.New(tx).SettleRequest(ctx, db.SettleRequestParams{ProcessID: process})
			if must(t, err); settled != 1 {
				t.Error(settled)
			}
			must(t, tx.Commit(ctx))
			history, err := q.RequestHistory(ctx, db.RequestHistoryParams{EntityID: "e"})
			if must(t, err); len(history) != 1 || history[0].RequestStatus != db.RequestComplete || history[0].Message != nil {
				t.Errorf("%+v", history)
			}
			yes(operator.PauseQueue(ctx, db.PauseQueueParams{Kind: db.KindTask, Reason: "test"}))
			yes(operator.ResumeQueue(ctx, db.KindTask, ""))
		})
	}
}
