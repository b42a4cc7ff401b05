// Package silent has the logger of packages that were given none. It is apart from package
// logging so that these need no library whose log that joins.
package silent

import (
	"io"

	"github.com/sirupsen/logrus"
)

// Log returns a logger that writes nothing.
func Log() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.PanicLevel)
	return logrus.NewEntry(logger)
}
