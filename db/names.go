package db

import "time"

// Forever, as a task's Timeout, lets a capture hold it until it is settled.
const Forever = -time.Microsecond

// The kinds of locks, as Activity and the other structs name them. PauseQueue and ResumeQueue take
// KindTask and KindRequest.
const (
	KindKey      = "key"
	KindMutex    = "mutex"
	KindTimeout  = "timeout"
	KindTimeSlot = "time_slot"
	KindThrottle = "throttle"
	KindLease    = "lease"
	KindTask     = "task"
	KindRequest  = "request"
)

// A TaskStatus says where a task is.
type TaskStatus string

const (
	TaskNew        TaskStatus = "new"         // never captured, or given back
	TaskInProgress TaskStatus = "in_progress" // a capture has it
	TaskDone       TaskStatus = "done"
	TaskFailed     TaskStatus = "failed"
)

// A RequestType says how requests of an entity are given to a worker.
type RequestType string

const (
	RequestCreate RequestType = "create" // alone, and before any update
	RequestUpdate RequestType = "update" // with the entity's other updates
)

// A RequestStatus says where a request is.
type RequestStatus string

const (
	RequestNew        RequestStatus = "new"         // not settled, or put back
	RequestInProgress RequestStatus = "in-progress" // only inside the worker's transaction
	RequestComplete   RequestStatus = "complete"
	RequestError      RequestStatus = "error"

	// RequestRetry is for SettleRequest alone: new, and this was a try.
	RequestRetry RequestStatus = "retry"
)
