package fences

import (
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"konnectivity/internal/testutil"
)

// proseWidth is the width at which documents wrap.
const proseWidth = 100

func TestDocsWrapAtOneWidth(t *testing.T) {
	docs := markdown(t)
	testutil.Requires(t, len(docs) >= 10, "found only %d documents", len(docs))
	for _, doc := range docs {
		text := testutil.Must(os.ReadFile(doc))(t)
		for _, n := range wideLines(string(text)) {
			t.Errorf("%s:%d: prose is wider than %d columns", doc, n, proseWidth)
		}
	}
}

// No document is shipped with the marks of a merge that was left undecided. Code with them does not
// compile.
func TestDocsHaveNoConflicts(t *testing.T) {
	for _, doc := range markdown(t) {
		for i, line := range strings.Split(string(testutil.Must(os.ReadFile(doc))(t)), "\n") {
			testutil.Holds(t, !strings.HasPrefix(line, "<<<<<<< ") && !strings.HasPrefix(line, ">>>>>>> "),
				"%s:%d: a mark of a merge's conflict", doc, i+1)
		}
	}
}

func TestWideLines(t *testing.T) {
	wide := strings.Repeat("word ", 21)
	text := strings.Join([]string{
		wide,
		"- " + wide,
		strings.Repeat("é ", proseWidth/2), // columns count, not bytes
		"| " + wide + " |",
		"```sh", wide, "```",
		"    " + wide, // code, too
		"https://" + strings.Repeat("x", proseWidth), // has no place to wrap
		wide,
	}, "\n")
	testutil.EqualSlices(t, wideLines(text), []int{1, 2, 10}, "wide lines are")
}

// markdown returns the paths of all documents, without those of what was made or
// fetched into the tree (.gitignore).
func markdown(t *testing.T) []string {
	t.Helper()
	var docs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", ".cache", "bin", "dist"}, d.Name()):
			return fs.SkipDir
		case filepath.Ext(path) == ".md":
			docs = append(docs, path)
		}
		return nil
	})
	testutil.NoError(t, err)
	return docs
}

// outsideCode returns the lines, by their index, that no fence of ``` is around.
func outsideCode(text string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		fenced := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			} else if !fenced && !yield(i, line) {
				return
			}
		}
	}
}

// wideLines returns the numbers of the lines of prose that are too wide. Tables
// and code cannot be wrapped, nor can a line without a space.
func wideLines(text string) []int {
	var wide []int
	for i, line := range outsideCode(text) {
		prose := strings.TrimSpace(line)
		exempt := strings.HasPrefix(prose, "|") || strings.HasPrefix(line, "    ") || !strings.Contains(prose, " ")
		if !exempt && utf8.RuneCountInString(line) > proseWidth {
			wide = append(wide, i+1)
		}
	}
	return wide
}
