// Command migration writes the next migration from the function files that changed.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/seed4787c507/locks/tests/migrations"
)

func main() {
	root := flag.String("root", "..", "the project's root")
	name := flag.String("name", "", "the new migration's name, such as add_leases")
	amend := flag.Bool("amend", false, "rewrite the function sections of the newest migration, which nobody has deployed yet")
	check := flag.Bool("check", false, "only say how the function files differ from the migrations, and fail when they do")
	refreeze := flag.Bool("refreeze", false, "write the sections of all migrations anew, which nobody has deployed yet")
	flag.Parse()
	if *refreeze {
		if err := migrations.Refreeze(*root); err != nil {
			fmt.Fprintln(os.Stderr, "migration:", err)
			os.Exit(1)
		}
		return
	}
	if *check {
		drift, err := migrations.Drift(*root)
		if err != nil || len(drift) > 0 {
			fmt.Fprintln(os.Stderr, strings.Join(drift, "\n"), err)
			os.Exit(1)
		}
		return
	}
	path, err := migrations.Write(*root, *name, *amend)
	if err != nil {
		fmt.Fprintln(os.Stderr, "migration:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}
