package unixsocket

import (
	"os"
	"testing"

	"konnectivity/internal/testutil"
)

func TestParseOwner(t *testing.T) {
	for text, want := range map[string]Owner{
		"1001": {1001, unchanged}, "1001:1002": {1001, 1002}, ":1002": {unchanged, 1002}, "0:0": {0, 0},
	} {
		testutil.Equal(t, *testutil.Must(ParseOwner(text))(t), want, "%q", text)
	}
	for _, text := range []string{"", ":", "1001:", "-1", "1:2:3", "no such user", ":no such group", "4294967295"} {
		got, err := ParseOwner(text)
		testutil.Holds(t, err != nil, "%q: %+v", text, got)
	}
}

func TestParseMode(t *testing.T) {
	for text, want := range map[string]os.FileMode{"0660": 0o660, "770": 0o770, "0777": 0o777} {
		testutil.Equal(t, testutil.Must(ParseMode(text))(t), want, "%q", text)
	}
	for _, text := range []string{"", "0", "rw", "0888", "-1", "1777", "4770"} {
		got, err := ParseMode(text)
		testutil.Holds(t, err != nil, "%q: %v", text, got)
	}
}
