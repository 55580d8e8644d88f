// Command release makes what a release consists of, in a directory: the modules as a proxy made of
// files, the program for every system, the schema as one file, and checksums.
//
// In the repository the nested modules replace each other by their directories. Released ones must
// not: nobody reads a replace line but who builds that very module, and go install refuses it. So
// this program takes the last commit, drops the replace lines, requires the version that is made,
// and tidies. With -write it also puts these go.mod and go.sum files into the work tree, to be
// committed and tagged: see docs/development.md.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/zip"
)

const root = "github.com/seed4787c507/locks"

// modules are those that are released, each behind those that it needs, and so are their tags.
var modules = []string{"", "lockstest", "console", "cli"}

var systems = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

type release struct {
	version, out, tree, upstream string
}

func main() {
	log.SetFlags(0)
	version := flag.String("version", "", "such as v0.1.0")
	out := flag.String("out", "", "a new directory for what is made")
	write := flag.Bool("write", false, "put the released go.mod and go.sum files into the work tree")
	only := flag.Bool("proxy-only", false, "make the modules, and nothing else")
	flag.Parse()
	if err := run(context.Background(), *version, *out, *write, *only); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, version, out string, write, only bool) (err error) {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("-version is %q: pass one such as v0.1.0", version)
	}
	if out == "" {
		return errors.New("-out: pass a new directory")
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	r := &release{version: version, out: out}
	if r.tree, err = os.MkdirTemp("", "locks-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.tree)
	upstream, err := exec.CommandContext(ctx, "go", "env", "GOPROXY").Output()
	if err != nil {
		return err
	}
	r.upstream = strings.TrimSpace(string(upstream))
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return err
	}
	work := strings.TrimSpace(string(top))
	if err := checkout(ctx, work, r.tree); err != nil {
		return err
	}
	for _, dir := range modules {
		if err := r.module(ctx, dir); err != nil {
			return fmt.Errorf("module %s: %w", path(dir), err)
		}
	}
	if write {
		for _, dir := range modules {
			for _, name := range []string{"go.mod", "go.sum"} {
				text, err := os.ReadFile(filepath.Join(r.tree, dir, name))
				if err == nil {
					err = os.WriteFile(filepath.Join(work, dir, name), text, 0o644)
				}
				if err != nil {
					return err
				}
			}
		}
		fmt.Printf("commit, then tag that commit in this order: %s\n", strings.Join(tags(version), " "))
	}
	if only {
		return nil
	}
	return r.files(ctx)
}

func path(dir string) string {
	if dir == "" {
		return root
	}
	return root + "/" + dir
}

func tags(version string) (tags []string) {
	for _, dir := range modules {
		tags = append(tags, strings.TrimPrefix(path(dir)+"/"+version, root+"/"))
	}
	return tags
}

// checkout writes the last commit into a directory.
func checkout(ctx context.Context, work, tree string) error {
	archive := exec.CommandContext(ctx, "git", "-C", work, "archive", "--format=tar", "HEAD")
	text, err := archive.Output()
	if err != nil {
		return err
	}
	files := tar.NewReader(bytes.NewReader(text))
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		name := filepath.Join(tree, filepath.FromSlash(header.Name))
		switch header.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(name, 0o755)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(name, content, header.FileInfo().Mode())
			}
		}
		if err != nil {
			return err
		}
	}
}

// env lets the go command find what is made here before anything else.
func (r *release) env(more ...string) []string {
	return append(append(os.Environ(),
		"GOPROXY=file://"+filepath.Join(r.out, "proxy")+","+r.upstream,
		"GONOSUMDB="+root+","+root+"/*", "GONOSUMCHECK=1", "GOFLAGS=-mod=mod -modcacherw", "GOWORK=off"), more...)
}

func (r *release) run(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// module makes a module fit to be released, and puts it into the proxy.
func (r *release) module(ctx context.Context, dir string) error {
	at := filepath.Join(r.tree, dir)
	name := filepath.Join(at, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	file, err := modfile.Parse(name, text, nil)
	if err != nil {
		return err
	}
	for _, replace := range file.Replace {
		if err := file.DropReplace(replace.Old.Path, replace.Old.Version); err != nil {
			return err
		}
	}
	for _, require := range file.Require {
		if require.Mod.Path == root || strings.HasPrefix(require.Mod.Path, root+"/") {
			if err := file.AddRequire(require.Mod.Path, r.version); err != nil {
				return err
			}
		}
	}
	file.Cleanup()
	if text, err = file.Format(); err != nil {
		return err
	}
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return err
	}
	if err := r.run(ctx, at, r.env(), "go", "mod", "tidy"); err != nil {
		return err
	}
	if text, err = os.ReadFile(name); err != nil {
		return err
	}
	shelf := filepath.Join(r.out, "proxy", filepath.FromSlash(path(dir)), "@v")
	if err := os.MkdirAll(shelf, 0o755); err != nil {
		return err
	}
	packed, err := os.Create(filepath.Join(shelf, r.version+".zip"))
	if err != nil {
		return err
	}
	defer packed.Close()
	if err := zip.CreateFromDir(packed, module.Version{Path: path(dir), Version: r.version}, at); err != nil {
		return err
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, r.version, time.Now().UTC().Format(time.RFC3339))
	for suffix, content := range map[string]string{".mod": string(text), ".info": info} {
		if err := os.WriteFile(filepath.Join(shelf, r.version+suffix), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(shelf, "list"), []byte(r.version+"\n"), 0o644)
}

// files makes what people download.
func (r *release) files(ctx context.Context) error {
	cli := filepath.Join(r.tree, "cli")
	for _, system := range systems {
		name, arch, _ := strings.Cut(system, "/")
		program := filepath.Join(r.out, fmt.Sprintf("locks_%s_%s_%s", r.version, name, arch))
		if name == "windows" {
			program += ".exe"
		}
		err := r.run(ctx, cli, r.env("CGO_ENABLED=0", "GOOS="+name, "GOARCH="+arch), "go", "build", "-trimpath",
			"-ldflags", "-s -w -X main.released="+r.version, "-o", program, "./locks")
		if err != nil {
			return err
		}
	}
	sql := exec.CommandContext(ctx, "go", "run", "./locks", "sql")
	sql.Dir, sql.Env = cli, r.env()
	text, err := sql.Output()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.out, "locks.sql"), text, 0o644); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(r.out, "locks*"))
	if err != nil {
		return err
	}
	sort.Strings(names)
	var sums strings.Builder
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), filepath.Base(name))
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
