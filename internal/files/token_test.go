package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/files"
	"konnectivity/internal/testutil"
)

func TestToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for content, want := range map[string]string{"abc": "abc", " abc\n": "abc", "": "", "\n": "", "a b": "", "a\r\nX: y": "", "ä": "", strings.Repeat("a", files.MaxToken+1): ""} {
		testutil.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		got, err := files.Token(path)()
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.20q gave %q, %v", content, got, err)
		}
		if err != nil && len(content) > 2 && strings.Contains(err.Error(), content) {
			t.Errorf("the error tells the token: %v", err)
		}
	}
}
