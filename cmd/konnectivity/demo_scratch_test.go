package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

func TestScratchTakesFirstUsablePlace(t *testing.T) {
	good := t.TempDir()
	long := filepath.Join(t.TempDir(), strings.Repeat("a", 110)) // as a path of a unix socket
	testutil.NoError(t, os.Mkdir(long, 0o700))
	missing := filepath.Join(good, "missing")

	dir, err := makeScratch([]string{missing, long, good})
	testutil.Requires(t, err == nil && filepath.Dir(dir) == good, "made %q, %v; want one in %s", dir, err, good)
	testutil.Equal(t, len(testutil.Must(os.ReadDir(dir))(t)), 0, "files in it")
	testutil.Equal(t, len(testutil.Must(os.ReadDir(long))(t)), 0, "what is left behind in a place that does not do")

	_, err = makeScratch([]string{missing, long})
	testutil.Requires(t, err != nil, "it found a place where there is none")
	for _, part := range []string{missing + " (", "no such file or directory", "at most 107 bytes", "TMPDIR"} {
		testutil.Contains(t, err.Error(), part, "the error")
	}
}

func TestScratchPlacesBeginWithTMPDIR(t *testing.T) {
	t.Setenv("TMPDIR", "/given")
	places := scratchPlaces()
	testutil.Holds(t, len(places) >= 2 && places[0] == "/given", "%q", places)
}
