package admin

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
)

func TestParseToken(t *testing.T) {
	long := strings.Repeat("s3cret", 6)
	want, err := ParseToken([]byte(long))
	testutil.Requires(t, err == nil && want != (TokenDigest{}), "%v", err)
	for _, text := range []string{long + "\n", " " + long + "\r\n"} {
		d, err := ParseToken([]byte(text))
		testutil.Holds(t, err == nil && d.Is(want), "%q: %v", text, err)
	}
	for text, word := range map[string]string{
		"": "empty", "\n": "empty", long[:minToken-1]: "at least 32", long + " " + long: "without spaces", long + "\x00": "without spaces",
		long + "ü": "ASCII", strings.Repeat("s3cret", 1000): "at most",
	} {
		d, err := ParseToken([]byte(text))
		if err == nil || d != (TokenDigest{}) || !strings.Contains(err.Error(), word) {
			t.Errorf("%.20q: %v", text, err)
		} else if text != "" && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the token is in %q", err)
		}
	}
	a, errA := ParseToken(NewToken())
	b, errB := ParseToken(NewToken())
	testutil.Holds(t, errA == nil && errB == nil && !a.Is(b), "%v %v", errA, errB)
}

func TestTokenOf(t *testing.T) {
	token := strings.Repeat("t", minToken)
	want, _ := ParseToken([]byte(token))
	basic := func(user, password string) string {
		r := &http.Request{Header: http.Header{}}
		r.SetBasicAuth(user, password)
		return r.Header.Get("Authorization")
	}
	for _, value := range []string{"Bearer " + token, "bearer " + token, basic("", token), basic("anybody", token)} {
		d, given := TokenOf(&http.Request{Header: http.Header{"Authorization": {value}}})
		testutil.Holds(t, given && d.Is(want), "%q is not taken", value)
	}
	for _, values := range [][]string{{""}, {token}, {"Bearer"}, {"Bearer "}, {"Digest " + token}, {basic(token, "")}, {"Basic " + token}, {"Bearer " + token, "Bearer " + token}} {
		d, given := TokenOf(&http.Request{Header: http.Header{"Authorization": values}})
		testutil.Holds(t, given && d == (TokenDigest{}), "%q: %v", values, given)
	}
	_, given := TokenOf(&http.Request{Header: http.Header{}})
	testutil.Holds(t, !given, "a token was given by nobody")
}

// A token file is followed. An invalid one keeps the last token, and is logged once.
func TestTokenFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "token")
		log, hook := logtest.NewNullLogger()
		testutil.Fails(t, testutil.Err(OpenTokenFile(path, log)), "there is no file")
		write := func(text string) TokenDigest {
			testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			time.Sleep(tokenAge)
			d, _ := ParseToken([]byte(text))
			return d
		}
		first := write(strings.Repeat("1", minToken))
		f, err := OpenTokenFile(path, log)
		testutil.Requires(t, err == nil && f.Get().Is(first), "%v", err)
		second := write(strings.Repeat("2", minToken))
		testutil.Holds(t, f.Get().Is(second), "the file is not followed")
		write("short")
		for range 2 {
			testutil.Holds(t, f.Get().Is(second), "a bad file counts")
			time.Sleep(tokenAge)
		}
		testutil.Equal(t, len(hook.AllEntries()), 1, "lines")
		if f.Get(); !f.Get().Is(second) || write(strings.Repeat("3", minToken)) == second || f.Get().Is(second) {
			t.Error("a good file does not count")
		}
	})
}
