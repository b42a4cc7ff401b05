package tunnel_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"konnectivity/tunnel"
)

// specified reads a table of §8: labels by number.
func specified(t *testing.T, heading string) map[string]string {
	t.Helper()
	spec, err := os.ReadFile("../docs/link-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
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
func TestCodesAreThoseOfTheSpecification(t *testing.T) {
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
func TestKnownEndsWithTheLast(t *testing.T) {
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
