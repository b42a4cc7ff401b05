package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

var (
	dist       = flag.String("dist", "", "folder of a release to test, of this system at least; needs root")
	arch       = flag.String("arch", runtime.GOARCH, "architecture whose archive is tested")
	signingKey = flag.String("key", "", "FILE.key that the release was signed with; the public one is in FILE.pub")
	emulator   = flag.String("emulator", "", "what runs the archive's programs, for another architecture")
)

// artefact is the one file of the release that fits a pattern.
func artefact(t *testing.T, pattern string) string {
	t.Helper()
	if *dist == "" {
		t.Skip("tests a release: make release-test")
	}
	files, err := filepath.Glob(filepath.Join(*dist, pattern))
	requires(t, err == nil && len(files) == 1, "%s: %q, %v; want one file", pattern, files, err)
	return files[0]
}

// command runs a command to its end and returns what it printed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := try(t, name, args...)
	requires(t, err == nil, "%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	return out
}

func try(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestChecksums(t *testing.T) {
	sums := artefact(t, "SHA256SUMS")
	files := must(os.ReadDir(*dist))(t)
	out := command(t, "sh", "-c", "cd "+*dist+" && sha256sum --check "+filepath.Base(sums))
	for _, f := range files {
		signature := strings.HasSuffix(f.Name(), ".sig") || strings.HasSuffix(f.Name(), ".intoto.jsonl")
		if !f.IsDir() && !signature && f.Name() != checksumsName && !strings.Contains(out, f.Name()+": OK") {
			t.Errorf("%s has no checksum", f.Name())
		}
	}
}

// What is in an archive runs where it is unpacked.
func TestArchive(t *testing.T) {
	t.Parallel()
	folder := unpack(t, artefact(t, "konnectivity_*_"+runtime.GOOS+"_"+*arch+".tar.gz"))
	run := func(name string, args ...string) (string, error) {
		name = filepath.Join(folder, name)
		if *emulator != "" {
			name, args = *emulator, append([]string{name}, args...)
		}
		return try(t, name, args...)
	}
	for _, p := range programs {
		out, err := run(p.name, "--version")
		requires(t, err == nil, "%s: %v\n%s", p.name, err, out)
		holds(t, strings.Contains(out, p.name+" version v") && !strings.Contains(out, "unknown"),
			"%s --version: %q", p.name, out)
		page, err := os.ReadFile(filepath.Join(folder, "man", p.name+".1"))
		holds(t, err == nil && strings.Contains(string(page), ".TH") && !strings.Contains(string(page), "Auto generated"),
			"man page of %s: %v", p.name, err)
	}
	noError(t, os.Symlink("konnectivity", filepath.Join(folder, plugin)))
	if out, err := run(plugin, "status", "--help"); err != nil || !strings.Contains(out, "\n  kubectl konnectivity status [ADDRESS...]") {
		t.Errorf("as a plugin: %v\n%s", err, out)
	}
	checkLicences(t, folder, folder)
	checkDocuments(t, folder)
	if out, err := run("konnectivity", "quickstart", "--once"); err != nil {
		t.Errorf("quickstart: %v\n%s", err, out)
	}
}

// checkDocuments follows every link to documents, pictures and manifests.
func checkDocuments(t *testing.T, folder string) {
	t.Helper()
	link := regexp.MustCompile(`\]\(([^)#:]+)[)#]`)
	count := map[string]int{}
	err := filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".md" {
			return err
		}
		text, err := os.ReadFile(file)
		for _, l := range link.FindAllStringSubmatch(string(text), -1) {
			to := filepath.Join(filepath.Dir(file), l[1])
			from, _ := filepath.Rel(folder, file)
			if below, _ := filepath.Rel(folder, to); strings.HasPrefix(below, "docs/") || strings.HasPrefix(below, "manifests/") {
				count[from]++
				if _, err := os.Stat(to); err != nil {
					t.Errorf("%s leads to what is not there: %v", from, err)
				}
			}
		}
		return err
	})
	holds(t, err == nil && count["README.md"] >= 10 && count["manifests/README.md"] >= 6,
		"links: %v, %v", count, err)
}

// checkLicences looks for those of everything linked into the programs of a
// folder.
func checkLicences(t *testing.T, folder, bin string) {
	t.Helper()
	if own, err := os.ReadFile(filepath.Join(folder, "LICENSE")); err != nil || !strings.Contains(string(own), "Apache License") {
		t.Errorf("our own licence: %v", err)
	}
	others := must(os.ReadFile(filepath.Join(folder, thirdParty)))(t)
	wanted := []string{"Go's standard library: LICENSE", "Go's standard library: PATENTS", authorities + "@"}
	for _, p := range programs {
		info := must(buildinfo.ReadFile(filepath.Join(bin, p.name)))(t)
		for _, m := range linked(info) {
			wanted = append(wanted, "\n"+m.String()+": ")
		}
	}
	for _, want := range append(wanted, "Redistribution and use in source and binary forms") {
		contains(t, string(others), want, thirdParty)
	}
}

// unpack returns the one folder at an archive's top.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	f := must(os.Open(archive))(t)
	defer f.Close()
	z := must(gzip.NewReader(f))(t)
	root := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		noError(t, err)
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = errors.New("krew unpacks no links")
		default:
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, os.FileMode(h.Mode))
			}
		}
		noError(t, err)
	}
	folders, err := os.ReadDir(root)
	requires(t, err == nil && len(folders) == 1,
		"%s holds %v, %v; want one folder", filepath.Base(archive), folders, err)
	return filepath.Join(root, folders[0].Name())
}

func TestBillOfMaterials(t *testing.T) {
	bom := readBill(t)
	refs := map[string]bool{bom.Metadata.Component.BOMRef: true}
	for _, c := range *bom.Components {
		holds(t, !refs[c.BOMRef], "%s is there twice", c.BOMRef)
		refs[c.BOMRef] = true
	}
	for _, d := range *bom.Dependencies {
		for _, ref := range *d.Dependencies {
			holds(t, refs[ref], "%s needs %s, which is not there", d.Ref, ref)
		}
	}
	names := ""
	for ref := range refs {
		names += ref + "\n"
	}
	for _, want := range []string{"konnectivity-image\n", "konnectivity-agent-image\n", "konnectivity-hypershift-image\n", "pkg:golang/" + authorities + "@", "pkg:deb/debian/busybox-static@"} {
		contains(t, names, want, "the bill")
	}
}

// The bill of materials has exactly the modules that are linked into the released
// programs, as go version reads them.
func TestBillOfMaterialsIsComplete(t *testing.T) {
	bom := readBill(t)
	folder := unpack(t, artefact(t, "konnectivity_*_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz"))
	for _, p := range programs {
		checkBill(t, bom, p.name, filepath.Join(folder, p.name))
	}
	const operator = "control-plane-operator"
	file := filepath.Join(t.TempDir(), operator)
	text := imageFile(t, artefact(t, "oci/konnectivity-hypershift"), "usr/bin/"+operator)
	noError(t, os.WriteFile(file, text, 0o755))
	checkBill(t, bom, operator, file)
}

func readBill(t *testing.T) *cdx.BOM {
	t.Helper()
	f := must(os.Open(artefact(t, "konnectivity_*_"+runtime.GOOS+"_"+runtime.GOARCH+".cdx.json")))(t)
	defer f.Close()
	bom := new(cdx.BOM)
	noError(t, cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(bom))
	return bom
}

// checkBill compares what a bill says of a program with the program.
func checkBill(t *testing.T, bom *cdx.BOM, name, file string) {
	t.Helper()
	sum := must(sumOf(file))(t)
	i := slices.IndexFunc(*bom.Components, func(c cdx.Component) bool { return c.BOMRef == name })
	requires(t, i >= 0, "%s is not in the bill", name)
	if hashes := (*bom.Components)[i].Hashes; hashes == nil || len(*hashes) != 1 || (*hashes)[0].Value != sum {
		t.Errorf("%s: the bill is of another file", name)
	}
	i = slices.IndexFunc(*bom.Dependencies, func(d cdx.Dependency) bool { return d.Ref == name })
	requires(t, i >= 0, "the bill does not say what %s needs", name)
	if got, want := *(*bom.Dependencies)[i].Dependencies, linkedByGo(t, file); !slices.Equal(got, want) {
		t.Errorf("%s consists of\n%q, and by the bill of\n%q", name, want, got)
	}
}

// linkedByGo is what go version tells of a program, as a bill names it.
func linkedByGo(t *testing.T, file string) (refs []string) {
	t.Helper()
	for line := range strings.Lines(command(t, "go", "version", "-m", file)) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, file):
			refs = append(refs, "pkg:golang/std@"+strings.TrimPrefix(words[1], "go"))
		case words[0] == "dep":
			refs = append(refs, "pkg:golang/"+words[1]+"@"+words[2])
		case words[0] == "=>":
			refs[len(refs)-1] = "pkg:golang/" + words[1] + "@" + words[2]
		}
	}
	slices.Sort(refs)
	return refs
}

// decode reads what a command printed.
func decode(t *testing.T, text string, to any) {
	t.Helper()
	noError(t, withOutput(json.Unmarshal([]byte(text), to), text))
}
