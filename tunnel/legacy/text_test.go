package legacy

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestDialTextOfOurAgentComesBackExactly(t *testing.T) {
	for f := range tunnel.Failures() {
		for _, reason := range []string{"", "not in the list (see the policy)", "no such host", "connection refused (i/o timeout)", strings.Repeat("x", maxText)} {
			sent := &tunnel.DialError{Failure: f, Reason: reason, Err: errors.New("inner 10.0.0.1")}
			text := dialText(sent)
			testutil.Equal(t, strings.HasPrefix(text, sent.Text()), true, "%q begins as people read it", text)
			got := parseDialText("a:1", text)
			testutil.Equal(t, got.Failure, f, "what %q comes as", text)
			testutil.Equal(t, got.Text(), sent.Text(), "its text")
			testutil.Equal(t, strings.Contains(text, "10.0.0.1"), false, "%q names an inner address", text)
		}
	}
}

// What an old agent says of a failure is for the log alone: it may name an inner address.
func TestDialTextsOfOldAgents(t *testing.T) {
	for text, want := range map[string]tunnel.Failure{
		"dial tcp 10.0.0.1:80: i/o timeout":                  tunnel.FailTimeout,
		"dial tcp: lookup foo on 10.0.0.10:53: no such host": tunnel.FailNoSuchHost,
	} {
		got := parseDialText("a:1", text)
		testutil.Equal(t, got.Failure, want, "%q", text)
		testutil.Equal(t, strings.Contains(got.Text(), "10.0.0"), false, "%q names an inner address", got.Text())
		testutil.Contains(t, got.Error(), text, "the log")
	}
}

func TestResetCodesComeBackExactly(t *testing.T) {
	for code := range tunnel.Codes() {
		testutil.Equal(t, resetCode(code.String()), code, "the code of its text")
	}
	for _, text := range []string{"Unknown connectID", "unrecognized connectID", textUnknown} {
		testutil.Equal(t, resetCode(text), tunnel.CodePeerReset, "%q", text)
	}
}

func TestForeignTextIsCleaned(t *testing.T) {
	for _, end := range []string{"", " (i/o timeout)"} {
		got := parseDialText("a:1", "line one\nline two\x00\xff"+strings.Repeat("x", 10000)+end)
		if len(got.Error()) > 2*maxText || strings.ContainsAny(got.Error(), "\n\x00") || !utf8.ValidString(got.Error()) {
			t.Errorf("%d bytes: %.60q", len(got.Error()), got.Error())
		}
	}
}
