package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"unicode/utf16"

	"github.com/xuri/excelize/v2"
)

// page is the one page of each sheet.
const page = "Sheet1"

// An update puts a value into a cell. It is the payload of an update request.
type update struct {
	Cell  string `json:"cell"`
	Value any    `json:"value"` // a text, a number, true, false, or nil, which empties the cell
}

var unstorable = regexp.MustCompile(`[^\P{Cc}\n\t]|[\x{FFFE}\x{FFFF}]|_x[0-9A-Fa-f]{4}_`)

// check refuses what an .xlsx file does not give back as it is, and spells the cell in the one usual way.
func (u *update) check() error {
	column, row, err := excelize.CellNameToCoordinates(u.Cell)
	if err == nil {
		u.Cell, err = excelize.CoordinatesToCellName(column, row)
	}
	if err != nil {
		return fmt.Errorf("%.40q is not a cell such as B2", u.Cell)
	}
	switch value := u.Value.(type) {
	case nil, bool, float64:
	case string:
		if n := len(utf16.Encode([]rune(value))); n > excelize.TotalCellChars {
			return fmt.Errorf("the text has %d characters, and a cell holds %d", n, excelize.TotalCellChars)
		}
		if unstorable.MatchString(value) {
			return errors.New("the text has control characters, or the like of _x0041_, which an .xlsx file takes for one")
		}
	default:
		return errors.New("value must be a text, a number, true, false or null")
	}
	return nil
}

// updateOf reads an update from the payload of a request, which may be anything that somebody inserted.
func updateOf(payload []byte) (u update, err error) {
	if err := json.Unmarshal(payload, &u); err != nil {
		return u, fmt.Errorf("the payload is not an update: %w", err)
	}
	return u, u.check()
}

// writeVersion writes a new file of dir: what the file base holds, or nothing where base is empty, with updates on top, the last one
// of a cell winning. When it returns nil, the file will outlive a power failure.
func writeVersion(dir, base, file string, updates []update) (err error) {
	book := excelize.NewFile()
	if base != "" {
		if book, err = excelize.OpenFile(filepath.Join(dir, base)); err != nil {
			return err
		}
	}
	defer book.Close()
	for _, u := range updates {
		if err := book.SetCellValue(page, u.Cell, u.Value); err != nil {
			return err
		}
	}
	out, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = book.WriteTo(out)
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	directory, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
