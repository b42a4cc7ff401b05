package logging

import (
	"encoding/json"
	"testing"

	"konnectivity/internal/testutil"
)

func TestEscapedJSONMeansTheSame(t *testing.T) {
	const hostile = "a\x1b[2Jb\u202ec\u0085d\u200be\u2028f\x7fg\n\U000e0041ü語é"
	text, err := json.Marshal(map[string]string{hostile: hostile})
	testutil.NoError(t, err)
	escaped := escapeHidden(text)
	var got map[string]string
	if err := json.Unmarshal(escaped, &got); err != nil || got[hostile] != hostile {
		t.Errorf("%v, %q", err, got)
	}
	for _, r := range string(escaped) {
		if r != 'ü' && r != '語' && r != 'é' && (r < ' ' || r > '~') {
			t.Errorf("%U is left", r)
		}
	}
	if plain := []byte("{\"a\": 1}\n"); &escapeHidden(plain)[0] != &plain[0] {
		t.Error("an ordinary line is copied")
	}
}
