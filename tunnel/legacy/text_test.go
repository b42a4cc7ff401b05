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

	"konnectivity/tunnel"
)

func TestDialTextOfOurAgentComesBackExactly(t *testing.T) {
	for f := range tunnel.Failures() {
		for _, reason := range []string{"", "not in the list (see the policy)", "no such host", "connection refused (i/o timeout)", strings.Repeat("x", maxText)} {
			sent := &tunnel.DialError{Failure: f, Reason: reason, Err: errors.New("inner 10.0.0.1")}
			text := dialText(sent)
			got := parseDialText("a:1", text)
			if got.Failure != f || got.Text() != sent.Text() {
				t.Errorf("%v with reason %q went as %q and came as %v with %q", f, reason, text, got.Failure, got.Text())
			}
			if strings.Contains(text, "10.0.0.1") {
				t.Errorf("%q names an inner address", text)
			}
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
		if got.Failure != c.want {
			t.Errorf("%q is taken for %v, want %v", c.text, got.Failure, c.want)
		}
		if strings.Contains(got.Text(), "10.0.0") {
			t.Errorf("a client would be told %q", got.Text())
		}
		if !strings.Contains(got.Error(), c.text) {
			t.Errorf("the log would not show %q but %q", c.text, got.Error())
		}
	}
}

func TestResetCodesComeBackExactly(t *testing.T) {
	for code := range tunnel.Codes() {
		if got := resetCode(code.String()); got != code {
			t.Errorf("%v came back as %v", code, got)
		}
	}
	for _, text := range []string{"Unknown connectID", "unrecognized connectID", textUnknown} {
		if got := resetCode(text); got != tunnel.CodePeerReset {
			t.Errorf("%q is taken for %v", text, got)
		}
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
