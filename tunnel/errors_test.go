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
		{fmt.Errorf("x: %w", &tunnel.ResetError{Code: tunnel.CodeStalled}), tunnel.CodeStalled},
		{errors.New("?"), tunnel.CodeUnknown},
	} {
		if got := tunnel.CodeOf(c.err); got != c.want {
			t.Errorf("CodeOf(%v) = %v, want %v", c.err, got, c.want)
		}
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
		if strings.Contains(code.String(), "code") {
			t.Errorf("code %d has no words of its own: %s", code, code)
		}
	}
	if got := tunnel.Code(999).Label(); seen[got] != tunnel.CodeUnknown {
		t.Errorf("an unknown code is labelled %q", got)
	}
	if got := tunnel.Code(999).String(); !strings.Contains(got, "999") {
		t.Errorf("an unknown code reads %q", got)
	}
}

// specified reads a table of §8: labels by number.
func specified(t *testing.T, heading string) map[string]string {
	t.Helper()
	spec := testutil.Must(os.ReadFile("../docs/link-protocol.md"))(t)
	_, rows, found := strings.Cut(string(spec), "| "+heading+" | label | why |\n|---|---|---|\n")
	if !found {
		t.Fatalf("the table %q is not where it was", heading)
	}
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
		if label == "" || want[key] != label {
			t.Errorf("%s is %q here, %q in the specification", key, label, want[key])
		}
		delete(want, key)
	}
	for c := range tunnel.Codes() {
		same(uint16(c), c.Label(), codes)
	}
	for f := range tunnel.Failures() {
		same(uint16(f), f.Label(), failures)
	}
	if len(codes)+len(failures) > 0 {
		t.Errorf("only the specification has the codes %v and failures %v", codes, failures)
	}
}

// The first number that nobody has given a meaning is not known; nor is "no failure".
func TestKnownEndsWithLastNumber(t *testing.T) {
	var lastCode tunnel.Code
	for lastCode = range tunnel.Codes() {
	}
	var lastFailure tunnel.Failure
	for lastFailure = range tunnel.Failures() {
	}
	if !lastCode.Known() || (lastCode + 1).Known() {
		t.Errorf("the last code is %d", lastCode)
	}
	if !lastFailure.Known() || (lastFailure + 1).Known() || tunnel.Failure(0).Known() {
		t.Errorf("the last failure is %d", lastFailure)
	}
}

func TestLossesHaveNames(t *testing.T) {
	labels := map[string]bool{}
	for c := range tunnel.AllLossCauses() {
		err := fmt.Errorf("read: %w", tunnel.Lost(c))
		if tunnel.LossOf(err) != c || tunnel.CodeOf(err) != tunnel.CodeLost {
			t.Errorf("%v is found as %v with the code %v", c, tunnel.LossOf(err), tunnel.CodeOf(err))
		}
		if c.Label() == "" || c.String() == "" || labels[c.Label()] {
			t.Errorf("cause %d is called %q and %q", c, c.Label(), c)
		}
		labels[c.Label()] = true
	}
	if len(labels) != tunnel.LossCauses {
		t.Errorf("%d causes, want %d", len(labels), tunnel.LossCauses)
	}
	if tunnel.Lost(200) != tunnel.Lost(tunnel.LossUnknown) {
		t.Error("a number without a meaning has an error of its own")
	}
	if got := tunnel.Lost(tunnel.LossSilent).Error(); got != "connection reset: the tunnel that carried it was lost: its peer fell silent" {
		t.Error(got)
	}
}
