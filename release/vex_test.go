package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// database writes one of vulnerabilities in all versions below 99 of modules, each by the
// package and function that has it.
func database(t *testing.T, all map[string][2]string) (folder string) {
	folder = t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(folder, name)
		noError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		noError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	const modified = `"modified":"2026-11-01T00:00:00Z"`
	write("index/db.json", "{"+modified+"}")
	var modules, ids []string
	for i, module := range slices.Sorted(maps.Keys(all)) {
		id := fmt.Sprintf("GO-2099-%04d", i+1)
		ids = append(ids, `{"id":"`+id+`",`+modified+`}`)
		modules = append(modules, `{"path":"`+module+`","vulns":[{"id":"`+id+`",`+modified+`,"fixed":"99.0.0"}]}`)
		write("ID/"+id+".json", `{"schema_version":"1.3.1","id":"`+id+`",`+modified+`,"aliases":["CVE-2099-`+module+`"],
			"affected":[{"package":{"name":"`+module+`","ecosystem":"Go"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"99.0.0"}]}],
			"ecosystem_specific":{"imports":[{"path":"`+all[module][0]+`","symbols":["`+all[module][1]+`"]}]}}]}`)
	}
	write("index/modules.json", "["+strings.Join(modules, ",")+"]")
	write("index/vulns.json", "["+strings.Join(ids, ",")+"]")
	return folder
}

// A document says of each vulnerability whether a program calls the code that has it, on any
// system.
func TestOpenVEX(t *testing.T) {
	r := &release{root: must(filepath.Abs(".."))(t), out: t.TempDir(), work: t.TempDir(), systems: []system{{"linux", "amd64"}, {"windows", "amd64"}, {"linux", "arm64"}}, version: "v1.2.3", tags: "grpcnotrace", time: time.Unix(1, 0).UTC()}
	noError(t, r.vulnerabilities())
	equal(t, len(must(os.ReadDir(r.out))(t)), 0, "files without a database")
	r.vulndb = database(t, map[string][2]string{
		"github.com/elazarl/goproxy": {"github.com/elazarl/goproxy", "NewProxyHttpServer"},
		"golang.org/x/net":           {"golang.org/x/net/webdav", "Handler.ServeHTTP"},
		"golang.org/x/sys":           {"golang.org/x/sys/windows/svc", "Run"},
		"example.com/not-ours":       {"example.com/not-ours", "F"},
	})
	noError(t, r.vulnerabilities())
	var doc struct {
		ID         string `json:"@id"`
		Author     string
		Timestamp  time.Time
		Statements []struct {
			Vulnerability struct{ Aliases []string }
			Products      []struct {
				ID string `json:"@id"`
			}
			Status string
		}
	}
	noError(t, json.Unmarshal(must(os.ReadFile(r.file("openvex.json")))(t), &doc))
	said := map[string]string{}
	for _, s := range doc.Statements {
		for _, p := range s.Products {
			said[strings.TrimPrefix(s.Vulnerability.Aliases[0], "CVE-2099-")] = s.Status + " " + p.ID
		}
	}
	if want := map[string]string{
		"github.com/elazarl/goproxy": "affected pkg:generic/konnectivity@v1.2.3",
		"golang.org/x/net":           "not_affected pkg:generic/konnectivity@v1.2.3",
		"golang.org/x/sys":           "affected pkg:generic/konnectivity@v1.2.3",
	}; !maps.Equal(said, want) {
		t.Errorf("it says %v, want %v", said, want)
	}
	holds(t, doc.ID == "urn:konnectivity:openvex:v1.2.3" && doc.Author == "konnectivity" && doc.Timestamp.Equal(r.time),
		"it is %s of %s, %v", doc.ID, doc.Author, doc.Timestamp)
	r.vulndb = t.TempDir()
	if err := r.vulnerabilities(); err == nil {
		t.Error("an empty folder is a database")
	}
}
