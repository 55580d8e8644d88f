package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/xuri/excelize/v2"
)

// check compares what the front end says of each sheet, and its file, with what was asked, and prints a line for each sheet. A back
// end that was killed between the writing of a file and the commit leaves an orphan: a file that no settled batch made.
func (s *stage) check(ctx context.Context, out io.Writer, orphans int) (problems []string) {
	settled := map[string]bool{}
	for _, sheet := range slices.Sorted(maps.Keys(s.asked)) {
		var status sheetStatus
		var file []byte
		var cells map[string]string
		err := errors.Join(
			s.call(ctx, http.MethodGet, "/sheets/"+sheet+"?max=10000", nil, http.StatusOK, &status),
			s.call(ctx, http.MethodGet, "/sheets/"+sheet+"/file", nil, http.StatusOK, &file))
		if err == nil {
			cells, err = cellsOf(file)
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", sheet, err))
			continue
		}
		slices.Reverse(status.History) // Now the oldest is the first.
		for _, problem := range slices.Concat(checkHistory(s.asked[sheet], status.History), checkCells(s.asked[sheet], cells)) {
			problems = append(problems, sheet+": "+problem)
		}
		var sizes []int
		for _, r := range status.History {
			if !settled[r.Process] {
				sizes = append(sizes, 0)
			}
			settled[r.Process] = true
			sizes[len(sizes)-1]++
		}
		fmt.Fprintf(out, "         %-7s a create, and %d updates in %d batches: %s\n", sheet, len(status.History)-1, len(sizes)-1, strings.Trim(fmt.Sprint(sizes[1:]), "[]"))
	}

	files, err := os.ReadDir(s.files)
	if err != nil {
		return append(problems, err.Error())
	}
	found := 0
	for _, file := range files {
		if !settled[strings.TrimSuffix(file.Name(), ".xlsx")] {
			found++
		}
	}
	if found != orphans {
		problems = append(problems, fmt.Sprintf("%d files are of no settled batch, and it should be %d", found, orphans))
	}
	return problems
}

// checkHistory says what is wrong with a history, oldest first: each request must be there once, as it was asked, settled as complete
// once, in order, and the create by itself.
func checkHistory(wanted []asked, history []requestStatus) (problems []string) {
	complain := func(format string, arguments ...any) { problems = append(problems, fmt.Sprintf(format, arguments...)) }
	if len(history) != len(wanted) {
		complain("the history has %d requests, and %d were made", len(history), len(wanted))
		return problems
	}
	seen := map[string]bool{}
	for i, r := range history {
		kind, payload := "create", []byte(nil)
		if u := wanted[i].update; u != nil {
			kind = "update"
			payload, _ = json.Marshal(u)
			got, _ := updateOf(r.Update)
			r.Update, _ = json.Marshal(got) // The database spells JSON in its own way.
		}
		if r.Request != wanted[i].request || r.Type != kind || !bytes.Equal(r.Update, payload) {
			complain("request %d is %s %s, and should be %d, %s %s", r.Request, r.Type, r.Update, wanted[i].request, kind, payload)
		}
		if r.Status != "complete" || r.Settled == nil || r.Process == "" {
			complain("request %d is %s", r.Request, r.Status)
			continue
		}
		if r.Tries != 1 {
			complain("request %d was tried %d times", r.Request, r.Tries)
		}
		if i > 0 {
			previous := history[i-1]
			switch {
			case r.Process == previous.Process && previous.Type == "create":
				complain("request %d was worked on together with the create", r.Request)
			case r.Process == previous.Process: // They were settled by one statement.
			case seen[r.Process]:
				complain("request %d was worked on together with others from before request %d", r.Request, previous.Request)
			case previous.Settled != nil && r.Settled.Before(*previous.Settled):
				complain("request %d was settled before request %d", r.Request, previous.Request)
			}
		}
		seen[r.Process] = true
	}
	return problems
}

// checkCells says which cells are not as the last update of each wanted them.
func checkCells(wanted []asked, got map[string]string) (problems []string) {
	want := map[string]string{}
	for _, a := range wanted {
		if a.update != nil {
			want[a.update.Cell] = textOf(a.update.Value)
		}
	}
	for _, cell := range slices.Sorted(maps.Keys(want)) {
		if got[cell] != want[cell] {
			problems = append(problems, fmt.Sprintf("%s holds %q, and should hold %q", cell, got[cell], want[cell]))
		}
	}
	for _, cell := range slices.Sorted(maps.Keys(got)) {
		if _, wanted := want[cell]; !wanted {
			problems = append(problems, fmt.Sprintf("%s holds %q, and nobody asked for that", cell, got[cell]))
		}
	}
	return problems
}

// textOf is what a value reads as in a file.
func textOf(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(value, 'f', -1, 64)
	case bool:
		return map[bool]string{false: "0", true: "1"}[value]
	}
	return fmt.Sprint(value)
}

// cellsOf reads what is in the cells of an .xlsx file.
func cellsOf(file []byte) (map[string]string, error) {
	book, err := excelize.OpenReader(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	defer book.Close()
	rows, err := book.GetRows(page, excelize.Options{RawCellValue: true})
	if err != nil {
		return nil, err
	}
	cells := map[string]string{}
	for i, row := range rows {
		for j, value := range row {
			name, err := excelize.CoordinatesToCellName(j+1, i+1)
			if err != nil {
				return nil, err
			}
			if value != "" {
				cells[name] = value
			}
		}
	}
	return cells, nil
}
