package cli

import (
	"reflect"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

const (
	hostile = "a\x1b[2Jb\u202ec\u0085d\u200be\u2028f\x7fg\n\U000e0041ü語é"
	shown   = "a?[2Jb?c?d?e?f?g??ü語é"
)

func TestPrintable(t *testing.T) {
	testutil.Equal(t, Printable(hostile), shown, "it is shown as")
}

func TestMakePrintable(t *testing.T) {
	type inner struct{ Name string }
	type outer struct {
		When   time.Time
		Names  []inner
		Counts map[string]int
		To     *inner
		None   *inner
		N      float64
	}
	now := time.Now()
	got := outer{now, []inner{{hostile}}, map[string]int{hostile: 1}, &inner{hostile}, nil, 1}
	MakePrintable(&got)
	want := (outer{now, []inner{{shown}}, map[string]int{shown: 1}, &inner{shown}, nil, 1})
	testutil.Holds(t, reflect.DeepEqual(got, want), "%+v", got)
}
