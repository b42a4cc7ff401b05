package testutil

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
)

// Lines counts the lines of a log that have a text in their message or fields, of all levels or of
// these.
func Lines(log *test.Hook, text string, levels ...logrus.Level) (n int) {
	for _, e := range log.AllEntries() {
		if strings.Contains(fmt.Sprint(e.Message, e.Data), text) &&
			(len(levels) == 0 || slices.Contains(levels, e.Level)) {
			n++
		}
	}
	return n
}
