//go:build cgo

package yugabytelint

import (
	"github.com/seed4787c507/locks/tests/migrations"
)

// Project returns the project's migrations in order, and then its function files.
func Project(root string) ([]File, error) {
	all, err := migrations.Migrations(root)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, m := range all {
		files = append(files, File{m.Path, m.Text})
	}
	functions, err := migrations.Functions(root)
	if err != nil {
		return nil, err
	}
	for path, text := range functions {
		files = append(files, File{path, text})
	}
	return files, nil
}
