package fences

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

func TestDocsLinkToWhatIsThere(t *testing.T) {
	for _, doc := range markdown(t) {
		text := testutil.Must(os.ReadFile(doc))(t)
		for _, link := range brokenLinks(doc, string(text)) {
			t.Errorf("%s links to %s, which is not there", doc, link)
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	doc := filepath.Join(t.TempDir(), "a.md")
	text := strings.Join([]string{
		"# The first `one`, and more", "## Twice", "```", "# no heading, [no link](none)", "```", "## [Twice](a.md)",
		"[here](#the-first-one-and-more) [again](a.md#twice-1) [afar](https://example.com/none#x) [folder](.)",
		"[gone](b.md) [thrice](#twice-2) [code](#no-heading-no-linknone)",
	}, "\n")
	testutil.NoError(t, os.WriteFile(doc, []byte(text), 0o600))
	testutil.EqualSlices(t, brokenLinks(doc, text), []string{"b.md", "#twice-2", "#no-heading-no-linknone"}, "broken links")
}

// links are those within a document, and to other files.
var links = regexp.MustCompile(`\]\(([^):\s]+)\)`)

// brokenLinks are the links of a document that lead to no file, or to no heading.
func brokenLinks(doc, text string) (broken []string) {
	for _, line := range outsideCode(text) {
		for _, link := range links.FindAllStringSubmatch(line, -1) {
			path, heading, _ := strings.Cut(link[1], "#")
			target := doc
			if path != "" {
				target = filepath.Join(filepath.Dir(doc), filepath.FromSlash(path))
			}
			if !leads(target, heading) {
				broken = append(broken, link[1])
			}
		}
	}
	return broken
}

// leads says whether there is a file, with a heading if one is given.
func leads(target, heading string) bool {
	if heading == "" {
		_, err := os.Stat(target)
		return err == nil
	}
	text, err := os.ReadFile(target)
	return err == nil && slices.Contains(headings(string(text)), heading)
}

var (
	headingLine = regexp.MustCompile(`^#+ +(.*)`)
	linkText    = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	notInAnchor = regexp.MustCompile(`[^\pL\pN_ -]`)
)

// headings are those of a document, as GitHub and others name their anchors.
func headings(text string) (all []string) {
	count := make(map[string]int)
	for _, line := range outsideCode(text) {
		found := headingLine.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		title := strings.TrimSpace(linkText.ReplaceAllString(found[1], "$1"))
		anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		if n := count[anchor]; n > 0 {
			all = append(all, fmt.Sprint(anchor, "-", n))
		} else {
			all = append(all, anchor)
		}
		count[anchor]++
	}
	return all
}

// How documents name tests, some with their folder, and benchmarks that are run by part of a name.
var (
	namedTests = regexp.MustCompile("`(?:([a-z0-9/]+)\\.)?((?:Test|Benchmark|Fuzz|Example)[A-Z]\\w+)`")
	benchArgs  = regexp.MustCompile(`-bench\s+(\w+)`)
	testFuncs  = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w+)\(`)
)

func TestDocsNameTestsThatAreThere(t *testing.T) {
	type test struct{ folder, name string } // "": any folder
	found := map[test]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		folder := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), filepath.FromSlash(root+"/")))
		for _, match := range testFuncs.FindAllSubmatch(text, -1) {
			found[test{folder, string(match[1])}], found[test{"", string(match[1])}] = true, true
		}
		return err
	})
	testutil.NoError(t, err)
	named := map[bool]int{} // by whether the folder is named, too
	for _, doc := range markdown(t) {
		text := testutil.Must(os.ReadFile(doc))(t)
		for _, match := range namedTests.FindAllSubmatch(text, -1) {
			folder, name := string(match[1]), string(match[2])
			if named[folder != ""]++; !found[test{folder, name}] {
				t.Errorf("%s names %s, which is not there", doc, match[0])
			}
		}
		for _, match := range benchArgs.FindAllSubmatch(text, -1) {
			part := regexp.MustCompile("^Benchmark.*" + string(match[1]))
			if named[false]++; !slices.ContainsFunc(slices.Collect(maps.Keys(found)), func(t test) bool { return part.MatchString(t.name) }) {
				t.Errorf("%s runs %s, which finds no benchmark", doc, match[0])
			}
		}
	}
	testutil.Holds(t, named[false] >= 10 && named[true] != 0,
		"documents name %d tests, and %d with their folder", named[false], named[true])
}
