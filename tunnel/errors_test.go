package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestCodeOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want tunnel.Code
	}{
		{nil, tunnel.CodeUnknown},
		{syscall.ECONNRESET, tunnel.CodePeerReset},
		{syscall.EPIPE, tunnel.CodePeerReset},
		{io.ErrUnexpectedEOF, tunnel.CodePeerReset},
		{context.Canceled, tunnel.CodeCancelled},
		{os.ErrDeadlineExceeded, tunnel.CodeTimeout},
		{context.DeadlineExceeded, tunnel.CodeTimeout},
		{fmt.Errorf("x: %w", syscall.ETIMEDOUT), tunnel.CodeTimeout},
		{fmt.Errorf("x: %w", &tunnel.ResetError{Code: tunnel.CodeStalled}), tunnel.CodeStalled},
		{errors.New("?"), tunnel.CodeUnknown},
	} {
		testutil.Equal(t, tunnel.CodeOf(c.err), c.want, "CodeOf(%v)", c.err)
	}
}

// A peer may send any code: labels stay few, and each known code has its own.
func TestCodeLabels(t *testing.T) {
	seen := map[string]tunnel.Code{}
	for code := range tunnel.Codes() {
		label := code.Label()
		if other, twice := seen[label]; twice || label == "" || code.String() == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("code %d is labelled %q, code %d too: %v", code, label, other, twice)
		}
		seen[label] = code
		testutil.Equal(t, strings.Contains(code.String(), "code"), false, "%q is no text of its own", code)
	}
	testutil.Equal(t, seen[tunnel.Code(999).Label()], tunnel.CodeUnknown, "the label of an unknown code, as a code")
	testutil.Contains(t, tunnel.Code(999).String(), "999", "an unknown code")
}

// specified reads a table of §8: labels by number.
func specified(t *testing.T, heading string) map[string]string {
	t.Helper()
	spec := testutil.Must(os.ReadFile("../docs/link-protocol.md"))(t)
	_, rows, found := strings.Cut(string(spec), "| "+heading+" | label | why |\n|---|---|---|\n")
	testutil.Requires(t, found, "the table %q is not where it was", heading)
	rows, _, _ = strings.Cut(rows, "\n\n")
	labels := map[string]string{}
	for row := range strings.Lines(rows) {
		cell := strings.Split(row, "|")
		labels[strings.TrimSpace(cell[1])] = strings.Trim(strings.TrimSpace(cell[2]), "`")
	}
	return labels
}

// The numbers of the wire are those of the specification, and all of them.
func TestCodesMatchSpecification(t *testing.T) {
	codes, failures := specified(t, "reset"), specified(t, "failure of a dial")
	same := func(n uint16, label string, want map[string]string) {
		key := fmt.Sprint(n)
		testutil.Holds(t, label != "" && want[key] == label,
			"%s is %q here, %q in the specification", key, label, want[key])
		delete(want, key)
	}
	for c := range tunnel.Codes() {
		same(uint16(c), c.Label(), codes)
	}
	for f := range tunnel.Failures() {
		same(uint16(f), f.Label(), failures)
	}
	testutil.Equal(t, len(codes)+len(failures), 0, "only in the specification: %v, %v", codes, failures)
}

// The first number that nobody has given a meaning is not known; nor is "no failure".
func TestKnownEndsWithLastNumber(t *testing.T) {
	var lastCode tunnel.Code
	for lastCode = range tunnel.Codes() {
	}
	var lastFailure tunnel.Failure
	for lastFailure = range tunnel.Failures() {
	}
	testutil.Equal(t, lastCode.Known(), true, "the last code is known")
	testutil.Equal(t, (lastCode + 1).Known(), false, "the one behind it is")
	testutil.Equal(t, lastFailure.Known(), true, "the last failure is known")
	testutil.Equal(t, (lastFailure+1).Known() || tunnel.Failure(0).Known(), false, "others are")
}

func TestLossesHaveNames(t *testing.T) {
	labels := map[string]bool{}
	for c := range tunnel.AllLossCauses() {
		err := fmt.Errorf("read: %w", tunnel.Lost(c))
		testutil.Equal(t, tunnel.LossOf(err), c, "the cause that is found")
		testutil.Equal(t, tunnel.CodeOf(err), tunnel.CodeLost, "the code for %v", c)
		testutil.Holds(t, c.Label() != "" && c.String() != "" && !labels[c.Label()], "cause %d is called %q and %q", c, c.Label(), c)
		labels[c.Label()] = true
	}
	testutil.Equal(t, len(labels), tunnel.LossCauses, "causes")
	testutil.Equal(t, tunnel.Lost(200), tunnel.Lost(tunnel.LossUnknown), "the error of a number without a meaning")
	for c, want := range map[tunnel.LossCause]string{
		tunnel.LossUnknown: "connection reset by peer: the tunnel that carried it was lost",
		tunnel.LossSilent:  "connection reset by peer: the tunnel that carried it was lost: its peer fell silent",
		tunnel.LossLocal:   "connection reset: this process closed the tunnel that carried it",
	} {
		testutil.Equal(t, tunnel.Lost(c).Error(), want, "the text")
	}
}
