package legacy

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
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
			got := parseDialText("a:1", text)
			testutil.Equal(t, got.Failure, f, "what %q comes as", text)
			testutil.Equal(t, got.Text(), sent.Text(), "its text")
			testutil.Equal(t, strings.Contains(text, "10.0.0.1"), false, "%q names an inner address", text)
		}
	}
}

func TestDialTextsOfOldAgents(t *testing.T) {
	op := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 80}, Err: os.NewSyscallError("connect", err)}
	}
	for _, c := range []struct {
		text string
		want tunnel.Failure
	}{
		{op(syscall.ECONNREFUSED).Error(), tunnel.FailRefused},
		{op(syscall.EHOSTUNREACH).Error(), tunnel.FailHostUnreach},
		{op(syscall.ENETUNREACH).Error(), tunnel.FailNetUnreach},
		{op(syscall.ENETDOWN).Error(), tunnel.FailNetUnreach},
		{op(syscall.EADDRNOTAVAIL).Error(), tunnel.FailNetUnreach},
		{op(syscall.EMFILE).Error(), tunnel.FailExhausted},
		{op(syscall.ENOMEM).Error(), tunnel.FailExhausted},
		{op(syscall.ETIMEDOUT).Error(), tunnel.FailTimeout},
		{op(syscall.ECONNRESET).Error(), tunnel.FailReset},
		{op(syscall.EACCES).Error(), tunnel.FailDenied},
		{"dial tcp 10.0.0.1:80: i/o timeout", tunnel.FailTimeout},
		{"dial tcp: lookup foo on 10.0.0.10:53: no such host", tunnel.FailNoSuchHost},
		{"dial tcp: lookup foo on 10.0.0.10:53: server misbehaving", tunnel.FailResolve},
		{"dial tcp: lookup foo: Temporary failure in name resolution", tunnel.FailResolve},
		{"dial tcp: address foo: missing port in address", tunnel.FailBadAddress},
		{"dial udp: unknown network bla", tunnel.FailBadAddress},
		{"dial tcp: address 99999999: invalid port", tunnel.FailBadAddress},
		{context.DeadlineExceeded.Error(), tunnel.FailTimeout},
		{"timed out waiting for backend dial", tunnel.FailTimeout},
		{"something new", tunnel.FailInternal},
	} {
		got := parseDialText("a:1", c.text)
		testutil.Equal(t, got.Failure, c.want, "%q", c.text)
		testutil.Equal(t, strings.Contains(got.Text(), "10.0.0"), false, "%q names an inner address", got.Text())
		testutil.Contains(t, got.Error(), c.text, "the log")
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
