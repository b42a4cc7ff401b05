package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// govulncheck is pinned: another version may say another thing of the same sources.
const govulncheck = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"

// vulnerabilities writes, as OpenVEX, what a database knows of the programs' dependencies and
// whether a program calls the code in question. It does nothing without a database: what that
// knows differs from day to day, and all else of a release does not.
func (r *release) vulnerabilities() error {
	if r.vulndb == "" {
		return nil
	}
	db := r.vulndb
	if !strings.Contains(db, "://") {
		folder, err := filepath.Abs(db)
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(folder, "index", "db.json")); err != nil {
			return fmt.Errorf("%s is no database of vulnerabilities: %w", folder, err) // to govulncheck it has none
		}
		db = "file://" + filepath.ToSlash(folder)
	}
	documents, err := r.govulnchecked("-db="+db, "-format=openvex", "-tags="+r.tags, "./cmd/...")
	if err != nil {
		return fmt.Errorf("%s: %w", govulncheck, err)
	}
	return writeFile(r.file("openvex.json"), func(w io.Writer) error { return r.vex(w, documents) })
}

// govulnchecked returns what govulncheck says of the programs as they are for each operating
// system: they call code on one that they do not call on another.
func (r *release) govulnchecked(args ...string) (documents [][]byte, err error) {
	install := exec.Command("go", "install", govulncheck)
	if install.Env, err = settings(system{runtime.GOOS, runtime.GOARCH}, "off"); err != nil {
		return nil, err
	}
	install.Env, install.Stderr = append(install.Env, "GOBIN="+r.work), os.Stderr
	if err := install.Run(); err != nil {
		return nil, err
	}
	done := map[string]bool{}
	for _, s := range r.systems {
		if done[s.os] {
			continue
		}
		done[s.os] = true
		check := exec.Command(filepath.Join(r.work, "govulncheck"), args...)
		check.Dir, check.Stderr = r.root, os.Stderr
		if check.Env, err = settings(s, "off"); err != nil {
			return nil, err
		}
		out, err := check.Output()
		if err != nil {
			return nil, fmt.Errorf("for %s: %w", s.os, err)
		}
		documents = append(documents, out)
	}
	return documents, nil
}

// vex writes documents of govulncheck as one, with what that does not know: whose it is, of which
// product, and when that was made. A vulnerability is affected that is so on one system.
func (r *release) vex(w io.Writer, documents [][]byte) error {
	var doc map[string]any
	statements, at := []any{}, map[any]int{} // at: the index by vulnerability
	for _, document := range documents {
		doc = nil
		if err := json.Unmarshal(document, &doc); err != nil {
			return fmt.Errorf("%s: %w", govulncheck, err)
		}
		more, _ := doc["statements"].([]any)
		for _, s := range more {
			s, _ := s.(map[string]any)
			r.nameProducts(s)
			vulnerability, _ := s["vulnerability"].(map[string]any)
			i, known := at[vulnerability["@id"]]
			switch {
			case !known:
				at[vulnerability["@id"]] = len(statements)
				statements = append(statements, s)
			case s["status"] == "affected":
				statements[i] = s
			}
		}
	}
	doc["@id"], doc["author"], doc["timestamp"] = "urn:konnectivity:openvex:"+r.version, "konnectivity", r.time
	doc["statements"] = statements
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}

// nameProducts has a statement be about this release.
func (r *release) nameProducts(statement map[string]any) {
	products, _ := statement["products"].([]any)
	for _, p := range products {
		if p, ok := p.(map[string]any); ok {
			p["@id"] = "pkg:generic/konnectivity@" + r.version
		}
	}
}
