package printable

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	hostile = "a\x1b[2Jb\u202ec\u0085d\u200be\u2028f\x7fg\n\U000e0041ü語é"
	shown   = "a?[2Jb?c?d?e?f?g??ü語é"
)

func TestText(t *testing.T) {
	if got := Text(hostile); got != shown {
		t.Errorf("%q", got)
	}
}

func TestJSONMeansTheSame(t *testing.T) {
	text, err := json.Marshal(map[string]string{hostile: hostile})
	if err != nil {
		t.Fatal(err)
	}
	escaped := JSON(text)
	var got map[string]string
	if err := json.Unmarshal(escaped, &got); err != nil || got[hostile] != hostile {
		t.Errorf("%v, %q", err, got)
	}
	for _, r := range string(escaped) {
		if r != 'ü' && r != '語' && r != 'é' && (r < ' ' || r > '~') {
			t.Errorf("%U is left", r)
		}
	}
	if plain := []byte("{\"a\": 1}\n"); &JSON(plain)[0] != &plain[0] {
		t.Error("an ordinary line is copied")
	}
}

func TestAll(t *testing.T) {
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
	All(&got)
	if want := (outer{now, []inner{{shown}}, map[string]int{shown: 1}, &inner{shown}, nil, 1}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}
