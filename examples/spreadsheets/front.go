package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
)

// A front end records what users ask for, and tells them what became of it. It never touches a file but to hand it out.
type front struct {
	pool  *pgxpool.Pool
	files string // the directory of all files
}

// serve answers until ctx ends.
func (f *front) serve(ctx context.Context, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	server := &http.Server{Handler: f.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		ended <- server.Shutdown(last)
	})()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

func (f *front) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /sheets", answer(f.create))
	mux.Handle("POST /sheets/{id}/updates", answer(f.update))
	mux.Handle("GET /sheets/{id}", answer(f.status))
	mux.HandleFunc("GET /sheets/{id}/file", f.download)
	return mux
}

type accepted struct {
	Request int64 `json:"request"`
}

func (f *front) create(r *http.Request) (status int, answer any, err error) {
	var sheet struct {
		ID string `json:"id"`
	}
	if err := read(r, &sheet); err != nil {
		return 0, nil, err
	}
	if sheet.ID == "." || sheet.ID == ".." {
		return 0, nil, &problem{http.StatusBadRequest, "no address can hold the id " + sheet.ID}
	}
	request, err := db.New(f.pool).Enqueue(r.Context(), db.EnqueueParams{RequestType: db.RequestCreate, EntityID: sheet.ID, QueueID: queue})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23505" {
		return 0, nil, &problem{http.StatusConflict, "the sheet exists already"}
	}
	return http.StatusAccepted, accepted{request}, err
}

func (f *front) update(r *http.Request) (status int, answer any, err error) {
	var u update
	if err := read(r, &u); err != nil {
		return 0, nil, err
	}
	if err := u.check(); err != nil {
		return 0, nil, &problem{http.StatusBadRequest, err.Error()}
	}
	payload, err := json.Marshal(u)
	if err != nil {
		return 0, nil, err
	}
	if _, err := f.history(r, 1); err != nil {
		return 0, nil, err
	}
	request, err := db.New(f.pool).Enqueue(r.Context(), db.EnqueueParams{RequestType: db.RequestUpdate, EntityID: r.PathValue("id"), Payload: payload, QueueID: queue})
	return http.StatusAccepted, accepted{request}, err
}

// A sheetStatus is a sheet's history, newest first.
type sheetStatus struct {
	Sheet   string          `json:"sheet"`
	History []requestStatus `json:"history"`
}

// What a back end is at is new until it commits.
type requestStatus struct {
	Request int64           `json:"request"`
	Type    string          `json:"type"`
	Update  json.RawMessage `json:"update,omitempty"`
	Status  string          `json:"status"`
	Message *string         `json:"message,omitempty"`
	Process string          `json:"process,omitempty"` // who settled it; all requests of a batch have the same
	Tries   int32           `json:"tries"`
	Created time.Time       `json:"created"`
	Started *time.Time      `json:"started,omitempty"`
	Settled *time.Time      `json:"settled,omitempty"`
}

func (f *front) status(r *http.Request) (status int, answer any, err error) {
	newest := int64(100)
	if text := r.FormValue("max"); text != "" {
		if newest, err = strconv.ParseInt(text, 10, 32); err != nil {
			return 0, nil, &problem{http.StatusBadRequest, "max must be a number"}
		}
		if newest < 1 { // 0 would be db's default.
			return 0, nil, &problem{http.StatusBadRequest, "max must be at least 1"}
		}
	}
	requests, err := f.history(r, int32(newest))
	if err != nil {
		return 0, nil, err
	}
	s := sheetStatus{Sheet: r.PathValue("id")}
	for _, request := range requests {
		s.History = append(s.History, requestStatus{
			Request: request.RequestID, Type: string(request.RequestType), Update: request.Payload, Status: string(request.RequestStatus),
			Message: request.Message, Process: request.ProcessID.String(), Tries: request.Tries,
			Created: request.CreatedAt, Started: request.StartedAt, Settled: request.SettledAt,
		})
	}
	return http.StatusOK, s, nil
}

func (f *front) download(w http.ResponseWriter, r *http.Request) {
	var file string
	err := f.pool.QueryRow(r.Context(), "select file from spreadsheets.sheet where sheet_id = $1", r.PathValue("id")).Scan(&file)
	if errors.Is(err, pgx.ErrNoRows) {
		err = &problem{http.StatusNotFound, "there is no such sheet, or not yet"}
	}
	if err != nil {
		refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet")
	w.Header().Set("Content-Disposition", "attachment")
	http.ServeFile(w, r, filepath.Join(f.files, file))
}

// history is what was asked of the sheet that the address names: at least its create, or a 404.
func (f *front) history(r *http.Request, newest int32) ([]db.Request, error) {
	requests, err := db.New(f.pool).RequestHistory(r.Context(), db.RequestHistoryParams{EntityID: r.PathValue("id"), QueueID: queue, Max: newest})
	if err == nil && len(requests) == 0 {
		err = &problem{http.StatusNotFound, "there is no such sheet"}
	}
	return requests, err
}

// A problem is an error whose text is for the user.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

// read reads the body, which must be one JSON value of v's shape.
func read(r *http.Request, v any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(v)
	if err == nil {
		if _, end := decoder.Token(); end != io.EOF {
			err = errors.New("there is more than one value")
		}
	}
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return &problem{http.StatusRequestEntityTooLarge, err.Error()}
	} else if err != nil {
		return &problem{http.StatusBadRequest, "the body is not the JSON that is wanted: " + err.Error()}
	}
	return nil
}

// answer sends what a handler returns as JSON.
func answer(handle func(r *http.Request) (status int, answer any, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		status, answer, err := handle(r)
		if err != nil {
			refuse(w, r, err)
			return
		}
		send(w, status, answer)
	})
}

// refuse tells the user of a problem. What the database calls wrong data (class 22: an empty or too long id, a character that it
// cannot store) is the user's; for the rest see the log.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := &problem{http.StatusInternalServerError, "something went wrong here; try again later"}
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &p):
	case errors.As(err, &pg) && strings.HasPrefix(pg.Code, "22"):
		p = &problem{http.StatusBadRequest, pg.Message}
		if pg.Hint != "" {
			p.text += ". " + pg.Hint
		}
	default:
		log.Printf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	send(w, p.status, struct {
		Error string `json:"error"`
	}{p.text})
}

func send(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}
