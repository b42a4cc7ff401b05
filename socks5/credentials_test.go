package socks5

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	// Renamed into place, as Kubernetes does.
	testutil.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	testutil.NoError(t, os.Rename(path+".new", path))
}

func TestParseCredentials(t *testing.T) {
	for text, want := range map[string]string{
		"anna:x":                               "",
		"# who may\n\nanna:x\r\nbert:y:z \n":   "",
		"":                                     "names no user",
		"# nobody\n":                           "names no user",
		"anna":                                 "line 1 is not user:password",
		"anna:x\nhunter2\n":                    "line 2 is not user:password",
		":x":                                   "line 1: a user has",
		"anna:":                                "line 1: a password has",
		strings.Repeat("u", 256) + ":x":        "a user has 1 to 255",
		"anna:" + strings.Repeat("p", 256):     "a password has 1 to 255",
		strings.Repeat("anna:x\n", maxUsers+1): "more than 1000 users",
		"#\nanna:" + strings.Repeat("p", 100<<10):   "line 2: a password has",
		strings.Repeat("anna:hunter2\n", 3) + "eve": "line 4",
	} {
		_, err := parseCredentials([]byte(text))
		testutil.ErrorSays(t, err, want, "%.40q", text)
		testutil.Holds(t, err == nil || !strings.Contains(err.Error(), "hunter2"), "the error holds a password: %v", err)
	}
}

func TestCredentialsDecide(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users")
	write(t, path, "anna:x\nbert:y:z \n")
	c := testutil.Must(LoadCredentials(path, logging.Silent()))(t)
	for _, in := range []struct {
		user, password string
		want           bool
	}{
		{"anna", "x", true}, {"bert", "y:z ", true},
		{"anna", "y", false}, {"annax", "", false}, {"ann", "ax", false}, {"", "", false}, {"bert", "y", false},
		{"bert:y", "z ", false}, {"hans", "x", false}, {strings.Repeat("a", 256+4), "x", false},
	} {
		testutil.Equal(t, c.valid(in.user, in.password), in.want, "%q with %q", in.user, in.password)
	}
}

func TestCredentialsFollowTheFile(t *testing.T) {
	synctest.Test(t, testCredentialsFollowTheFile)
}

func testCredentialsFollowTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users")
	log, lines := logBuffer()
	testutil.ErrorSays(t, testutil.Err(LoadCredentials(path, log)), path, "a missing file")
	write(t, path, strings.Repeat("#\n", maxCredentialsFile))
	testutil.ErrorSays(t, testutil.Err(LoadCredentials(path, log)), "larger than", "a huge file")
	write(t, path, "anna:x")
	c := testutil.Must(LoadCredentials(path, log))(t)
	tick := func() { time.Sleep(recheck) }

	write(t, path, "anna:longer")
	tick()
	testutil.Equal(t, c.valid("anna", "x"), false, "the old password is in force")
	testutil.Equal(t, c.valid("anna", "longer"), true, "the new one is")
	write(t, path, "hunter2\n")
	for range 3 {
		tick()
		testutil.Equal(t, c.valid("anna", "longer"), true, "an old user is valid, behind a broken file")
	}
	testutil.Equal(t, strings.Count(lines.String(), "old ones stay in use"), 1, "warnings")
	testutil.Equal(t, strings.Contains(lines.String(), "hunter2"), false, "a password is logged")
	testutil.NoError(t, os.Remove(path))
	tick()
	testutil.Equal(t, c.valid("anna", "longer"), true, "an old user is valid, without a file")
	write(t, path, "bert:z")
	tick()
	testutil.Equal(t, c.valid("anna", "longer"), false, "who is not in the file is let in")
	testutil.Equal(t, c.valid("bert", "z"), true, "who is in it is let in")
}
