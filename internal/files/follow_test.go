package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/files"
	"konnectivity/internal/testutil"
)

// A text is parsed once, also if it cannot be used: it may be long, and is read every second. A
// file that is mended to what it was has the value that it had, which is no news to its reader.
func TestFollowParsesEachTextOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string) { testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	parsed, told := 0, 0
	parse := func(text []byte) (string, error) {
		parsed++
		if string(text) == "bad" {
			return "", errors.New("bad")
		}
		return string(text), nil
	}
	write("one")
	f := testutil.Must(files.Follow(path, 10, 0, parse, func(error) { told++ }))(t)
	for i, now := range []struct {
		text, value string
		broken      bool
	}{{"one", "one", false}, {"bad", "one", true}, {"one", "one", false}, {"two", "two", false}, {"bad", "two", true}} {
		write(now.text)
		for range 3 {
			if value := f.Get(); value != now.value || (f.Fault() != "") != now.broken {
				t.Errorf("%d: %q; fault: %q", i, value, f.Fault())
			}
		}
	}
	testutil.Holds(t, parsed == 3 && told == 2, "parsed %d times, told of %d faults", parsed, told)
	testutil.Fails(t, testutil.Err(files.Follow(path, 10, 0, parse, nil)), "a file that cannot be used at first")
	write("one")
	seldom := testutil.Must(files.Follow(path, 10, time.Hour, parse, nil))(t)
	write("two")
	testutil.Equal(t, seldom.Get(), "one", "the value of a file that was read a moment ago")
}

func TestToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for content, want := range map[string]string{"abc": "abc", " abc\n": "abc", "": "", "\n": "", "a b": "", "a\r\nX: y": "", "ä": "", strings.Repeat("a", files.MaxToken+1): ""} {
		testutil.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		got, err := files.Token(path)()
		testutil.Holds(t, got == want && (err == nil) == (want != ""), "%.20q gave %q, %v", content, got, err)
		testutil.Holds(t, err == nil || len(content) <= 2 || !strings.Contains(err.Error(), content),
			"the error tells the token: %v", err)
	}
}

// Of a file that is overwritten in place, a half is not used: not while it changes. One whose
// time is ahead is used at once.
func TestHalfAFileIsNotUsed(t *testing.T) {
	const settle = time.Hour
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string, age time.Duration) {
		testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		at := time.Now().Add(-age)
		testutil.NoError(t, os.Chtimes(path, at, at))
	}
	told := 0
	write("one", 0)
	f := testutil.Must(files.Follow(path, 10, 0, func(text []byte) (string, error) {
		if len(text) == 0 {
			return "", errors.New("empty")
		}
		return string(text), nil
	}, func(error) { told++ }))(t)
	f.Settle(settle)
	for _, now := range []struct {
		text string
		age  time.Duration
		want string
	}{{"", 0, "one"}, {"t", settle / 2, "one"}, {"two", 2 * settle, "two"}, {"three", -settle, "three"}, {"", 0, "three"}} {
		write(now.text, now.age)
		if got := f.Get(); got != now.want || f.Fault() != "" || told > 0 {
			t.Errorf("%q, %v old: %q; fault: %q", now.text, now.age, got, f.Fault())
		}
	}
	write("", 2*settle)
	if got := f.Get(); got != "three" || f.Fault() == "" || told != 1 {
		t.Errorf("empty for long: %q; fault: %q", got, f.Fault())
	}
}
