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
	var err error
	check := exec.Command("go", "run", govulncheck, "-db="+db, "-format=openvex", "-tags="+r.tags, "./cmd/...")
	check.Dir, check.Stderr = r.root, os.Stderr
	if check.Env, err = settings(system{runtime.GOOS, runtime.GOARCH}, "off"); err != nil {
		return err
	}
	out, err := check.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", govulncheck, err)
	}
	return writeFile(r.file("openvex.json"), func(w io.Writer) error { return r.vex(w, out) })
}

// vex writes a document of govulncheck with what that does not know: whose it is, of which
// product, and when that was made.
func (r *release) vex(w io.Writer, document []byte) error {
	var doc map[string]any
	if err := json.Unmarshal(document, &doc); err != nil {
		return fmt.Errorf("%s: %w", govulncheck, err)
	}
	doc["@id"], doc["author"], doc["timestamp"] = "urn:konnectivity:openvex:"+r.version, "konnectivity", r.time
	statements, _ := doc["statements"].([]any)
	for _, s := range statements {
		s, _ := s.(map[string]any)
		products, _ := s["products"].([]any)
		for _, p := range products {
			if p, ok := p.(map[string]any); ok {
				p["@id"] = "pkg:generic/konnectivity@" + r.version
			}
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}
