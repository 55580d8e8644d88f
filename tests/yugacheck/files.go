package yugacheck

import (
	"github.com/seed4787c507/locks/tests/frozen"
)

// Project returns the project's migrations in order, and then its function files.
func Project(root string) ([]File, error) {
	migrations, err := frozen.Migrations(root)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, m := range migrations {
		files = append(files, File{m.Path, m.Text})
	}
	functions, err := frozen.Functions(root)
	if err != nil {
		return nil, err
	}
	for path, text := range functions {
		files = append(files, File{path, text})
	}
	return files, nil
}
